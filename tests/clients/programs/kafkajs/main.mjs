// kafkajs behind the line protocol of tests/clients/programs.
import { CompressionTypes, Kafka, logLevel } from "kafkajs";
import { Program, TICK_MS, offsets, sleep, versionOf, words } from "./lines.mjs";

const program = new Program();

function client() {
  return new Kafka({
    brokers: program.bootstrap,
    clientId: program.name,
    logLevel: logLevel.INFO,
    // its own would write to stdout, where the lines are
    logCreator: () => ({ namespace, label, log }) => console.error(new Date().toISOString(), label, namespace, JSON.stringify(log)),
  });
}

function ready() {
  program.say("ready", { version: versionOf("kafkajs", import.meta.url) });
}

// Either way a send is waited for before the next one, as its authors advise: mode=idempotent, or mode=plain with its five tries.
async function produce() {
  const idempotent = program.text("mode", "idempotent") === "idempotent";
  const producer = client().producer({ idempotent, ...(idempotent ? { maxInFlightRequests: 1 } : {}) });
  await producer.connect();
  ready();
  while (!program.stopping) {
    const due = program.due();
    if (due.length > 0) await send(producer, due);
    program.flush();
    await sleep(TICK_MS);
  }
  await producer.disconnect();
  program.say("closed", { next: program.next });
}

async function send(producer, due) {
  try {
    const bases = await sent(producer, due);
    const known = offsets(due, bases);
    due.forEach(({ number }, at) => program.acked(number, known[at]));
  } catch (error) {
    program.failed(due.map(({ number }) => number), true, error);
  }
}

async function sent(to, due) {
  const answers = await to.send({
    topic: program.topic,
    acks: -1,
    compression: CompressionTypes.GZIP,
    messages: due.map(({ partition, value }) => ({ partition, value })),
  });
  return answers.map(({ partition, baseOffset }) => [partition, BigInt(baseOffset)]);
}

async function transactions() {
  const producer = client().producer({
    idempotent: true,
    maxInFlightRequests: 1,
    transactionalId: program.text("transactional_id"),
  });
  await producer.connect();
  ready();
  const ticks = Math.max(1, Math.floor(program.number("commit_ms", 200) / TICK_MS));
  while (!program.stopping) {
    const numbers = [];
    const known = new Map();
    let transaction;
    try {
      transaction = await producer.transaction();
      for (let tick = 0; tick < ticks; tick++) {
        const due = program.due();
        if (due.length > 0) {
          numbers.push(...due.map(({ number }) => number));
          const told = offsets(due, await sent(transaction, due));
          due.forEach(({ number }, at) => known.set(number, told[at]));
        }
        await sleep(TICK_MS);
      }
    } catch (error) {
      program.error(error);
      const aborted = await abort(transaction);
      program.failed(numbers, !aborted, error);
      continue;
    }
    try {
      await transaction.commit();
      for (const number of numbers) program.acked(number, known.get(number));
      program.flush();
    } catch (error) {
      program.failed(numbers, true, error);
      break;
    }
  }
  await producer.disconnect();
  program.say("closed", { next: program.next });
}

async function abort(transaction) {
  try {
    await transaction?.abort();
    return true;
  } catch (error) {
    program.error(error);
    await sleep(1000);
    return false;
  }
}

async function consume() {
  const consumer = client().consumer({
    groupId: program.text("group"),
    sessionTimeout: 10_000,
    maxWaitTimeInMs: 100,
    readUncommitted: program.text("isolation", "read_committed") === "read_uncommitted",
  });
  const { GROUP_JOIN, REBALANCING, CRASH } = consumer.events;
  consumer.on(GROUP_JOIN, ({ payload }) => program.held("assigned", payload.memberAssignment[program.topic] ?? []));
  consumer.on(REBALANCING, () => program.held("revoked", []));
  // it starts again by itself where it says so
  consumer.on(CRASH, ({ payload }) => program.error(`crash: ${words(payload.error)}`, payload.restart ? "notice" : "error"));
  await consumer.connect();
  await consumer.subscribe({ topics: [program.topic], fromBeginning: true });
  ready();
  await consumer.run({
    autoCommit: false,
    eachBatch: async ({ batch, resolveOffset, uncommittedOffsets, commitOffsetsIfNecessary, heartbeat }) => {
      program.records(batch.partition, batch.messages.map(({ offset, value }) => [offset, value]));
      resolveOffset(batch.lastOffset());
      await commitOffsetsIfNecessary(uncommittedOffsets());
      await heartbeat();
    },
  });
  await program.stopped;
  await consumer.disconnect();
  program.say("closed");
}

program.run({ producer: produce, transactions, consumer: consume });

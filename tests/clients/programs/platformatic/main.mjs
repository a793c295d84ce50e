// @platformatic/kafka behind the line protocol of tests/clients/programs.
import { Consumer, Producer } from "@platformatic/kafka";
import { Program, TICK_MS, offsets, sleep, versionOf } from "./lines.mjs";

const COMMIT_EVERY_MS = 100;
const program = new Program();

function common() {
  return { clientId: program.name, bootstrapBrokers: program.bootstrap };
}

function ready() {
  program.say("ready", { version: versionOf("@platformatic/kafka", import.meta.url) });
}

// mode=idempotent, or mode=plain with its three tries a second apart; a send is waited for before the next one.
async function produce() {
  const producer = new Producer({
    ...common(),
    idempotent: program.text("mode", "idempotent") === "idempotent",
    acks: -1,
    compression: "gzip",
  });
  ready();
  while (!program.stopping) {
    const due = program.due();
    if (due.length > 0) await send(producer, due);
    program.flush();
    await sleep(TICK_MS);
  }
  await producer.close();
  program.say("closed", { next: program.next });
}

async function send(producer, due) {
  try {
    const answer = await producer.send({
      acks: -1,
      messages: due.map(({ partition, value }) => ({ topic: program.topic, partition, value })),
    });
    const known = offsets(due, answer.offsets.map(({ partition, offset }) => [partition, offset]));
    due.forEach(({ number }, at) => program.acked(number, known[at]));
  } catch (error) {
    program.failed(due.map(({ number }) => number), true, error);
  }
}

async function consume() {
  const consumer = new Consumer({
    ...common(),
    groupId: program.text("group"),
    groupProtocol: program.text("protocol", "classic"),
    sessionTimeout: 10_000,
    rebalanceTimeout: 30_000,
    heartbeatInterval: 1000,
    maxWaitTime: 100,
  });
  consumer.on("consumer:group:join", ({ assignments }) => {
    const mine = (assignments ?? []).find(({ topic }) => topic === program.topic);
    program.held("assigned", mine?.partitions ?? []);
  });
  consumer.on("error", (error) => program.error(error));
  ready();
  while (!program.stopping) {
    try {
      await read(consumer);
    } catch (error) {
      if (program.stopping) break;
      program.error(error);
      await sleep(1000);
    }
  }
  await consumer.close(true);
  program.say("closed");
}

/** One stream until the end, or until it breaks: then an application makes another one. */
async function read(consumer) {
  const stream = await Promise.race([
    consumer.consume({ topics: [program.topic], mode: "committed", fallbackMode: "earliest", autocommit: false }),
    program.stopped,
  ]);
  if (stream === undefined) return;
  let got = new Map();
  const broken = new Promise((_, reject) => stream.once("error", reject));
  broken.catch(() => {}); // the race below sees it
  stream.on("data", ({ partition, offset, value }) => {
    if (!got.has(partition)) got.set(partition, []);
    got.get(partition).push([offset, value]);
  });
  while (!program.stopping) {
    await Promise.race([sleep(COMMIT_EVERY_MS), broken]);
    const some = got;
    got = new Map();
    await commit(consumer, some);
  }
  await stream.close(); // not committed: not read
}

async function commit(consumer, got) {
  if (got.size === 0) return;
  for (const [partition, some] of got) program.records(partition, some);
  try {
    await consumer.commit({
      offsets: [...got].map(([partition, some]) => ({
        topic: program.topic, partition, offset: some.at(-1)[0] + 1n, leaderEpoch: -1,
      })),
    });
  } catch (error) {
    program.error(error);
  }
}

program.run({ producer: produce, consumer: consume });

// node-rdkafka, librdkafka for Node.js, behind the line protocol of tests/clients/programs.
import { once } from "node:events";
import { promisify } from "node:util";
import kafka from "node-rdkafka";
import { Program, TICK_MS, sleep, versionOf, words } from "./lines.mjs";

const CLOSE_TIMEOUT_MS = 60_000;
const AT_ONCE = 50; // records of one read, which lasts until it has them or none comes for 100 ms
const { CODES } = kafka;
const program = new Program();

function common() {
  return { "metadata.broker.list": program.bootstrap.join(","), "client.id": program.name };
}

/** librdkafka calls an error informational unless it is fatal: it goes on by itself. */
function told(error) {
  program.error(error, error.isFatal ? "error" : "notice");
}

async function connected(client) {
  client.on("event.error", told);
  client.connect();
  await once(client, "ready");
  const library = kafka.librdkafkaVersion;
  program.say("ready", { version: `${versionOf("node-rdkafka", import.meta.url)} (librdkafka ${library})` });
}

async function produce() {
  const producer = new kafka.Producer({
    ...common(), "enable.idempotence": true, "linger.ms": 5, "compression.codec": "gzip", dr_cb: true,
  });
  producer.on("delivery-report", (error, report) => {
    if (error) program.failed([report.opaque], true, error);
    else program.acked(report.opaque, report.offset);
  });
  await connected(producer);
  producer.setPollInterval(TICK_MS);
  while (!program.stopping) {
    for (const { number, partition, value } of program.due()) await send(producer, partition, value, number);
    await sleep(TICK_MS);
    program.flush();
  }
  await promisify(producer.flush.bind(producer))(CLOSE_TIMEOUT_MS).catch((error) => program.error(error));
  producer.poll();
  await sleep(TICK_MS);
  program.flush();
  await promisify(producer.disconnect.bind(producer))(CLOSE_TIMEOUT_MS);
  program.say("closed", { next: program.next });
}

async function send(producer, partition, value, number) {
  for (;;) {
    try {
      producer.produce(program.topic, partition, value, null, null, number);
      return;
    } catch (error) {
      if (error.code !== CODES.ERRORS.ERR__QUEUE_FULL) throw error;
      await sleep(50); // its queue is full; not one byte was taken
    }
  }
}

async function consume() {
  const rebalances = [];
  let reading = true;
  const consumer = new kafka.KafkaConsumer(
    {
      ...common(),
      "group.id": program.text("group"),
      "enable.auto.commit": false,
      "fetch.wait.max.ms": 100,
      "partition.assignment.strategy": program.text("assignor", "range"),
      "session.timeout.ms": 10_000,
      rebalance_cb: (error, some) => {
        if (reading) rebalances.push([error, some]);
        else rebalance(consumer, error, some);
      },
    },
    { "auto.offset.reset": "earliest" },
  );
  consumer.setDefaultConsumeTimeout(100);
  await connected(consumer);
  consumer.subscribe([program.topic]);
  const some = promisify(consumer.consume.bind(consumer));
  while (!program.stopping) {
    try {
      read(consumer, await some(AT_ONCE));
    } catch (error) {
      program.error(error);
    }
    for (const one of rebalances.splice(0)) rebalance(consumer, ...one);
  }
  reading = false;
  for (const one of rebalances.splice(0)) rebalance(consumer, ...one);
  await promisify(consumer.disconnect.bind(consumer))();
  program.say("closed");
}

/**
 * Between two reads: librdkafka waits for it. The library's own handler gives partitions up while another thread reads, so
 * records come after it whose commit is refused.
 */
function rebalance(consumer, error, some) {
  const given = error.code === CODES.ERRORS.ERR__ASSIGN_PARTITIONS;
  program.held(given ? "assigned" : "revoked", some.map(({ partition }) => partition));
  try {
    if (consumer.rebalanceProtocol() === "COOPERATIVE") {
      if (given) consumer.incrementalAssign(some);
      else consumer.incrementalUnassign(some);
    } else if (given) consumer.assign(some);
    else consumer.unassign();
  } catch (refused) {
    if (consumer.isConnected()) program.error(refused);
  }
}

function read(consumer, messages) {
  const got = grouped(messages);
  for (const [partition, some] of got) program.records(partition, some.map(({ offset, value }) => [offset, value]));
  if (got.size === 0) return;
  try {
    consumer.commitSync(
      [...got].map(([partition, some]) => ({ topic: program.topic, partition, offset: some.at(-1).offset + 1 })),
    );
  } catch (error) {
    program.error(`commit: ${words(error)}`);
  }
}

function grouped(messages) {
  const got = new Map();
  for (const message of messages) {
    if (!got.has(message.partition)) got.set(message.partition, []);
    got.get(message.partition).push(message);
  }
  return got;
}

program.run({ producer: produce, consumer: consume });

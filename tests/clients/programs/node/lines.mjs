// The programs for Node.js share this: arguments, lines, the pace of a producer, the end by SIGTERM.
import { readFileSync, writeSync } from "node:fs";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

export { sleep };
export const TICK_MS = 10;
const MAX_BURST = 100;
const FILLER = "the quick brown fox jumps over the lazy dog ".repeat(2);

export class Program {
  stopping = false;
  #arguments = new Map();
  #acks = [];
  #began = Date.now();
  #sent = 0;

  constructor(given = process.argv.slice(2)) {
    for (const argument of given) {
      const at = argument.indexOf("=");
      this.#arguments.set(argument.slice(0, at), argument.slice(at + 1));
    }
    this.name = this.text("name");
    this.topic = this.text("topic");
    this.bootstrap = this.text("bootstrap").split(",");
    this.next = this.number("first", 0);
    this.stopped = new Promise((resolve) => {
      for (const signal of ["SIGTERM", "SIGINT"]) {
        process.on(signal, () => {
          this.stopping = true;
          resolve();
        });
      }
    });
  }

  text(key, otherwise) {
    const value = this.#arguments.get(key) ?? otherwise;
    if (value === undefined) throw new Error(`${key}=... is missing`);
    return value;
  }

  number(key, otherwise) {
    return Number(this.text(key, otherwise));
  }

  /** Plays the role that the arguments name. An error that reached nobody is one that a library threw away: it is told too. */
  run(roles) {
    process.on("unhandledRejection", (error) => this.error(error));
    const role = roles[this.text("role")];
    if (role === undefined) throw new Error(`no role ${this.text("role")}`);
    role(this).then(
      () => process.exit(0),
      (error) => {
        console.error(error);
        process.exit(1);
      },
    );
  }

  say(event, more) {
    writeSync(1, JSON.stringify({ e: event, t: Date.now(), ...more }) + "\n");
  }

  error(error, event = "error") {
    this.say(event, { error: words(error) });
  }

  acked(number, offset) {
    this.#acks.push([number, offset === undefined ? -1 : Number(offset), Date.now()]);
  }

  flush() {
    const acks = this.#acks.splice(0);
    if (acks.length > 0) this.say("acked", { r: acks });
  }

  failed(numbers, written, error) {
    this.say("failed", { r: numbers, written, error: words(error) });
  }

  /** Records of one partition, as [offset, value]. */
  records(partition, some) {
    const told = some.map(([offset, value]) => [Number(offset), ...identity(value)]);
    if (told.length > 0) this.say("records", { topic: this.topic, p: partition, r: told });
  }

  held(event, partitions) {
    this.say(event, { p: partitions.map((partition) => [this.topic, partition]) });
  }

  /** The records whose time has come: number, partition, value. */
  due() {
    const late = Math.floor(((Date.now() - this.#began) / 1000) * this.number("rate", 100)) - this.#sent;
    const due = [];
    for (let count = Math.min(late, MAX_BURST); count > 0; count--) {
      const number = this.next++;
      const value = Buffer.from(`live|${this.name}|${number}|${FILLER}`);
      due.push({ number, partition: number % this.number("partitions", 1), value });
      this.#sent++;
    }
    return due;
  }
}

/** An error with the ones that caused it: a library's outermost text often only says that something failed. */
export function words(error) {
  const inner = error?.errors?.length ? error.errors.at(-1) : error?.cause;
  const text = String(error?.message ?? error);
  return inner ? `${text} [${words(inner)}]` : text;
}

/** The installed version of a package. */
export function versionOf(name, from) {
  const [main] = createRequire(from).resolve(name).split(`/node_modules/${name}/`);
  return JSON.parse(readFileSync(`${main}/node_modules/${name}/package.json`)).version;
}

/** The offset of each record of a send, which an answer tells only of the first one in each partition. */
export function offsets(due, bases) {
  const next = new Map(bases);
  return due.map(({ partition }) => {
    const offset = next.get(partition);
    if (offset !== undefined) next.set(partition, offset + 1n);
    return offset;
  });
}

function identity(value) {
  const parts = String(value ?? "").split("|");
  return parts.length === 4 && parts[0] === "live" ? [parts[1], Number(parts[2])] : ["", -1];
}

// Follows a jobledger ledger with NATS's own client, prints its events, and proves that none is missing or forged:
//
//   sequence   the stream's sequence has no hole
//   chain      each event names the sha256 of the bytes of the one before it: of its job, lock or reactor; the first of
//              a chain names none, and only a chain whose events were all archived may have a first event again
//   readable   what is no event is set aside, as every reader does: it is no link of a chain, and makes the ledger
//              unsound until an `acknowledged` event of an operator names its sequence and its sha256
//
// What an event is: docs/events.md. Looked at here are its subject, its envelope, and the bounds of the fields that are
// whole numbers and times; a program that appends compares with the JSON Schemas (`jobledger events schema`), too.
//
//   npm ci && node follow.mjs [--url nats://127.0.0.1:4222] [--environment NAME] [--follow] [--quiet]
//
// Without --follow it ends where the ledger ended when it began. Exit codes: 0 sound, 1 not sound or failed, 2 usage, 5 no server.

import { createHash } from "node:crypto";
import { parseArgs } from "node:util";
import { jetstream, jetstreamManager } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";

// How many words of a subject, after `ledger.<aggregate>.`, are the name of the chain, and which fields repeat them.
const CHAINS = { job: ["queue", "job"], lock: ["scope", "lock"], reactor: ["reactor"], unreadable: ["sequence"] };
const NUMBERS = ["attempt", "max_attempts", "held_epoch", "current_epoch", "through", "took_over", "fencing_number",
  "from_sequence", "to_sequence", "through_sequence", "archive_through", "begins_at", "count", "part", "parts", "sequence"];
const TIMES = ["at", "run_at", "retry_at", "until"];
const WORD = /^[A-Za-z0-9_-]{1,64}$/;
const TIME = /^(19[7-9]\d|[2-9]\d{3})-.*(Z|[+-]\d\d:?\d\d)$/;
const WHOLE_MAX = 2 ** 63; // what 2^63 - 1 is as a number of this language

class Violation extends Error {}
class Unreadable extends Error {}

/** Checks one event after the other; what it remembers of each chain is the hash and the sequence of its newest event. */
class Checker {
  constructor(firstSequence) {
    this.next = firstSequence;
    // Where older events were archived, what the first event of a chain links to cannot be looked up.
    this.beginsLater = firstSequence > 1;
    this.archivedThrough = 0; // the newest `archived` event says that everything up to here lies in an archive
    this.heads = new Map();
    this.setAside = new Map(); // sequence -> sha256 and why, until somebody accepts it
  }

  check(sequence, subject, bytes) {
    if (sequence !== this.next) {
      throw new Violation(`stream sequence ${this.next} is missing: the ledger goes on with ${sequence}`);
    }
    this.next = sequence + 1;
    const hash = createHash("sha256").update(bytes).digest("hex");
    let event;
    try {
      event = parse(subject, bytes);
    } catch (error) {
      if (!(error instanceof Unreadable)) {
        throw error;
      }
      this.setAside.set(sequence, { hash, why: `what is stored at ${sequence} is no event: ${error.message}` });
      return { type: "unreadable" };
    }
    if (event.v !== 1) {
      throw new Violation(`the event at ${sequence} was written by a newer jobledger: upgrade this program`);
    }
    const [, aggregate, ...words] = subject.split(".");
    const fields = CHAINS[aggregate];
    const chain = [aggregate, ...words.slice(0, fields.length)].join(".");
    const head = this.heads.get(chain);
    // An id is free once all events of its chain are archived: then another job, lock or reactor may take it.
    const beginsAgain = head !== undefined && event.prev === "" && head.sequence <= this.archivedThrough;
    const expected = beginsAgain ? "" : (head?.hash ?? (this.beginsLater ? event.prev : ""));
    if (event.prev !== expected) {
      throw new Violation(`the event at ${sequence} does not link to the one before it in ${chain}: it, or that one, is forged`);
    }
    this.heads.set(chain, { hash, sequence });
    if (aggregate === "reactor" && event.type === "archived") {
      this.archivedThrough = Math.max(this.archivedThrough, event.through_sequence);
    }
    if (aggregate === "unreadable" && this.setAside.get(event.sequence)?.hash === event.sha256) {
      this.setAside.delete(event.sequence);
    }
    return event;
  }
}

/** Returns the event in stored bytes, or throws `Unreadable` for what is none. */
function parse(subject, bytes) {
  const [, aggregate, ...words] = subject.split(".");
  const fields = CHAINS[aggregate];
  let event;
  try {
    event = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch (error) {
    throw new Unreadable(error.message);
  }
  if (fields === undefined || event === null || typeof event !== "object" || !words.every((word) => WORD.test(word))) {
    throw new Unreadable(`${subject} is no subject of an event, or it holds no object`);
  }
  const told = [...fields.map((field) => String(event[field])), event.type];
  if (event.type === "queued") {
    told.push(event.priority ?? "normal");
  }
  if (told.join(".") !== words.join(".")) {
    throw new Unreadable(`it says ${told.join(".")} and is stored under ${subject}`);
  }
  const isNumber = (value) => Number.isInteger(value) && value >= 0 && value < WHOLE_MAX;
  const isTime = (value) => typeof value === "string" && TIME.test(value);
  const odd = [
    ...["by", "prev"].filter((field) => typeof event[field] !== "string"),
    ...["v", ...NUMBERS].filter((field) => field in event && !isNumber(event[field])),
    ...TIMES.filter((field) => (event[field] ?? null) !== null && !isTime(event[field])),
  ];
  if (odd.length > 0 || !("v" in event && "at" in event)) {
    throw new Unreadable(`its fields ${odd.join(", ") || "v and at"} are not what an event has`);
  }
  return event;
}

async function follow(connection, options) {
  const prefix = options.environment ? `${options.environment.toUpperCase()}_` : "";
  const stream = `${prefix}LEDGER`;
  const { state } = await (await jetstreamManager(connection)).streams.info(stream);
  const first = Math.max(state.first_seq, 1); // of an empty stream it is 0
  const checker = new Checker(first);
  if (state.messages > 0 || options.follow) {
    // An ordered consumer: no acknowledgements, and made again by the client where the connection was lost.
    const consumer = await jetstream(connection).consumers.get(stream);
    const messages = await consumer.consume({ max_messages: 500 });
    for await (const message of messages) {
      const event = checker.check(message.seq, message.subject, message.data);
      if (!options.quiet) {
        console.log(`${String(message.seq).padStart(6)} ${event.type.padEnd(16)} ${message.subject}`);
      }
      if (!options.follow && (message.seq >= state.last_seq || message.info.pending === 0)) {
        break;
      }
    }
  }
  if (checker.next <= state.last_seq) {
    throw new Violation(`stream sequence ${checker.next} is missing: the ledger ended with ${state.last_seq}`);
  }
  for (const { why } of checker.setAside.values()) {
    throw new Violation(`${why} (${checker.setAside.size} in all that nobody accepted)`);
  }
  console.log(`sound: ${checker.next - first} events in ${checker.heads.size} chains`);
}

function readOptions() {
  const { values } = parseArgs({
    options: {
      url: { type: "string", default: process.env.JOBLEDGER_URL ?? "nats://127.0.0.1:4222" },
      environment: { type: "string", default: process.env.JOBLEDGER_ENVIRONMENT ?? "" },
      follow: { type: "boolean", default: false },
      quiet: { type: "boolean", default: false },
    },
  });
  return values;
}

async function main() {
  let options;
  let connection;
  try {
    options = readOptions();
  } catch (error) {
    console.error(`follow: ${error.message}`);
    return 2;
  }
  try {
    connection = await connect({ servers: options.url, name: "follow.mjs", timeout: 5000 });
  } catch (error) {
    console.error(`follow: no server answers at ${options.url}: ${error.message}`);
    return 5;
  }
  try {
    await follow(connection, options);
    return 0;
  } catch (error) {
    console.error(error instanceof Violation ? `the ledger is NOT sound: ${error.message}` : `follow: ${error.message}`);
    return 1;
  } finally {
    await connection.close();
  }
}

process.exitCode = await main();

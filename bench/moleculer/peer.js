// One side of Moleculer as a process, with the orders and answers of bench/peer.py.
//
//     node peer.js answers|calls nats://127.0.0.1:4222 /path/to/seed.nk
//
// moleculer and nats are found through NODE_PATH. Ends when stdin does.
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const readline = require("node:readline");
const { ServiceBroker } = require("moleculer");
const { nkeyAuthenticator } = require("nats");

const ACTION = "bench.echo";
const PAYLOAD = { text: "x".repeat(192) };
const CALL_TIMEOUT_MS = 20000;
const ENDS_AFTER_FAILURES = 20;

const [side, url, seedFile] = process.argv.slice(2);

const broker = new ServiceBroker({
  nodeID: `bench-${side}-${process.pid}`,
  logger: false,
  requestTimeout: CALL_TIMEOUT_MS,
  transporter: {
    type: "NATS",
    options: { url, authenticator: nkeyAuthenticator(new Uint8Array(fs.readFileSync(seedFile)).subarray(0, 58)) },
  },
});

if (side === "answers") {
  broker.createService({ name: "bench", actions: { echo: (ctx) => ctx.params } });
}

const tell = (message) => process.stdout.write(JSON.stringify(message) + "\n");
const now = () => Number(process.hrtime.bigint()) / 1e9;
const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

async function call() {
  const answer = await broker.call(ACTION, PAYLOAD);
  if (answer.text !== PAYLOAD.text) throw new Error("something else came back");
}

function percentileUs(sorted, percent) {
  if (sorted.length === 0) return 0;
  return 1e6 * sorted[Math.min(sorted.length - 1, Math.floor((sorted.length * percent) / 100))];
}

async function run({ concurrency, warm_s, seconds }) {
  const state = { counting: false, over: false, made: 0, failed: 0, failure: "", latencies: [] };
  const work = async () => {
    while (!state.over) {
      const began = now();
      try {
        await call();
        if (state.counting) state.latencies.push(now() - began);
      } catch (error) {
        state.failed += 1;
        state.failure = state.failure || String(error);
        if (state.failed >= ENDS_AFTER_FAILURES) return;
        await sleep(0.01);
      }
      state.made += 1;
    }
  };
  const workers = Array.from({ length: concurrency }, work);
  await sleep(warm_s);
  state.counting = true;
  const began = now();
  await sleep(seconds);
  state.counting = false;
  const took = now() - began;
  state.over = true;
  await Promise.all(workers);
  const sorted = Float64Array.from(state.latencies).sort();
  return {
    calls: sorted.length,
    seconds: took,
    made: state.made,
    failed: state.failed,
    failure: state.failure,
    p50_us: percentileUs(sorted, 50),
    p99_us: percentileUs(sorted, 99),
  };
}

function about() {
  const version = (name) =>
    JSON.parse(fs.readFileSync(path.join(process.env.NODE_PATH, name, "package.json"), "utf8")).version;
  return {
    python: "",
    loop: `node ${process.versions.node}`,
    versions: { moleculer: version("moleculer"), nats: version("nats"), node: process.versions.node },
  };
}

async function follow(order) {
  if (order.do === "run") return run(order);
  if (order.do === "about") return about();
  throw new Error(`an order is run or about, not ${order.do}`);
}

async function main() {
  await broker.start();
  if (side === "calls") await broker.waitForServices("bench", 15000);
  tell({ ready: true });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    try {
      tell(await follow(JSON.parse(line)));
    } catch (error) {
      tell({ error: String(error) });
    }
  }
  await broker.stop();
  process.exit(0);
}

main().catch((error) => {
  process.stderr.write(`${error.stack || error}\n`);
  process.exit(1);
});

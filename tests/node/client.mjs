// Sends each request of its standard input (JSON) and prints what came back, as one JSON array.
import { connect, nkeyAuthenticator } from "@nats-io/transport-node";
import { readFileSync } from "node:fs";

const work = JSON.parse(readFileSync(0, "utf8"));
const client = await connect({
  servers: work.servers,
  authenticator: nkeyAuthenticator(new TextEncoder().encode(work.seed.trim())),
});
const answers = [];
for (const { subject, body } of work.requests) {
  try {
    const message = await client.request(subject, body === null ? "" : JSON.stringify(body), { timeout: 5000 });
    answers.push({ json: message.json() });
  } catch (error) {
    answers.push({ error: (error.cause ?? error).constructor.name });
  }
}
await client.close();
process.stdout.write(JSON.stringify(answers));

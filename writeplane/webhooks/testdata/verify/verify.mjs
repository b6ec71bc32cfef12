// Reads requests as JSON lines {secret, headers, body, altered} and says for each
// verifier whether it accepts the message as sent and refuses the altered one.
import { createInterface } from "node:readline";
import * as standard from "standardwebhooks";
import * as svix from "svix";

const accepts = (Verifier, secret, body, headers) => {
  try {
    new Verifier(secret).verify(body, headers);
    return true;
  } catch {
    return false;
  }
};

for await (const line of createInterface({ input: process.stdin })) {
  const { secret, headers, body, altered } = JSON.parse(line);
  for (const [name, Verifier] of [["standardwebhooks", standard.Webhook], ["svix", svix.Webhook]]) {
    console.log(JSON.stringify({ name, sent: accepts(Verifier, secret, body, headers), altered: accepts(Verifier, secret, altered, headers) }));
  }
}

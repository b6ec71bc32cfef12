// The web OpenFeature SDK with its OFREP provider, told of changes by the stream that the edge names.
// Arguments: base address, API key. Prints one JSON object a line; after "listening" it waits for a change.
import { EventSource } from 'eventsource';
globalThis.EventSource = EventSource;
const { OpenFeature, ProviderEvents } = await import('@openfeature/web-sdk');
const { OFREPWebProvider } = await import('@openfeature/ofrep-web-provider');

const [baseUrl, key] = process.argv.slice(2);
const statuses = [];
const fetchImplementation = async (...request) => {
  const response = await fetch(...request);
  statuses.push(response.status);
  return response;
};
const provider = new OFREPWebProvider({ baseUrl, headers: [['x-api-key', key]], cacheMode: 'disabled', fetchImplementation });
const client = OpenFeature.getClient();
const say = (step) => {
  const { value, variant, reason } = client.getBooleanDetails('checkout', false);
  console.log(JSON.stringify({ step, value, variant, reason, statuses: statuses.splice(0) }));
};

await OpenFeature.setProviderAndWait(provider, { targetingKey: 'eve' });
say('first load');
await OpenFeature.setContext({ targetingKey: 'eve' });
say('unchanged context');
await OpenFeature.setContext({ targetingKey: 'eve', plan: 'pro' });
say('changed context');
await OpenFeature.setContext({ targetingKey: 'ada' });
say('another user');

const changed = new Promise((resolve) => client.addHandler(ProviderEvents.ConfigurationChanged, resolve));
console.log(JSON.stringify({ step: 'listening' }));
await changed;
say('after the stream told of a change');
await OpenFeature.close();

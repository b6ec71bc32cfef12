// The server-side OpenFeature SDK with its OFREP provider, asking for one flag of each kind.
// Arguments: base address, API key. Prints one JSON object a line.
import { OpenFeature } from '@openfeature/server-sdk';
import { OFREPProvider } from '@openfeature/ofrep-provider';

const [baseUrl, key] = process.argv.slice(2);
await OpenFeature.setProviderAndWait(new OFREPProvider({ baseUrl, headers: [['x-api-key', key]] }));
const client = OpenFeature.getClient();
const context = { targetingKey: 'ada', plan: 'pro', age: 36, anon_id: 'anon-1', session_count: 3 };
const asks = [
  ['getBooleanDetails', 'checkout', false, context],
  ['getBooleanDetails', 'checkout', false, { targetingKey: 'eve' }],
  ['getStringDetails', 'colour', 'none', context],
  ['getNumberDetails', 'limit', 0, context],
  ['getObjectDetails', 'layout', {}, context],
  ['getNumberDetails', 'retries', 0, context],
  ['getBooleanDetails', 'halted', true, context],
  ['getBooleanDetails', 'disabled', true, context],
  ['getBooleanDetails', 'absent', true, context],
  ['getStringDetails', 'limit', 'none', context],
  ['getBooleanDetails', 'checkout', false, {}],
];
for (const [method, flag, fallback, who] of asks) {
  const { value, variant, reason, errorCode, flagMetadata } = await client[method](flag, fallback, who);
  console.log(JSON.stringify({ flag, value, variant, reason, errorCode, halted: flagMetadata?.halted }));
}
await OpenFeature.close();

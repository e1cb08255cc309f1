// Anthropic's SDK against the messages route: its key goes into x-api-key.

import Anthropic from "@anthropic-ai/sdk";

import { play, stopAfterFirst, thrown } from "./play.mjs";

const clientOf = ({ url, key, ...options }) => new Anthropic({ baseURL: url, apiKey: key, ...options });
const asked = (model, content, more = {}) => ({
  model,
  max_tokens: 64,
  messages: [{ role: "user", content }],
  ...more,
});
const WEATHER = {
  name: "get_weather",
  description: "The weather in a city.",
  input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};

await play({
  async message({ model, content, ...client }) {
    const answer = await clientOf(client).messages.create(asked(model, content));
    return { text: answer.content[0].text, usage: answer.usage, stop: answer.stop_reason };
  },

  async streamedMessage({ model, content, ...client }) {
    const stream = clientOf(client).messages.stream(asked(model, content));
    const types = [];
    for await (const event of stream) types.push(event.type);
    return { types, text: await stream.finalText() };
  },

  async toolCall({ model, streamed, ...client }) {
    const messages = clientOf(client).messages;
    const body = asked(model, "weather in Paris?", { tools: [WEATHER] });
    const answer = streamed
      ? await messages.stream(body).finalMessage()
      : await messages.create(body);
    return { stop: answer.stop_reason, call: answer.content.find((part) => part.type === "tool_use") };
  },

  async count({ model, content, ...client }) {
    const { max_tokens: _, ...body } = asked(model, content);
    return (await clientOf(client).messages.countTokens(body)).input_tokens;
  },

  // Streamed: for so long an answer, the SDK insists on it.
  async thinking({ model, ...client }) {
    const body = asked(model, "hi", {
      max_tokens: 32_000,
      thinking: { type: "enabled", budget_tokens: 16_000 },
      stream: true,
    });
    const { data, response } = await clientOf(client).messages.create(body).withResponse();
    const types = [];
    for await (const event of data) types.push(event.type);
    return { types, clamped: response.headers.get("x-bulwark-clamped") };
  },

  async refused({ model, length, ...client }) {
    return await thrown(() =>
      clientOf(client).messages.create(asked(model, "x".repeat(length ?? 2))),
    );
  },

  async aStreamThatDies({ model, ...client }) {
    const types = [];
    const error = await thrown(async () => {
      const stream = clientOf(client).messages.stream(asked(model, "hi"));
      for await (const event of stream) types.push(event.type);
    });
    return { types, error };
  },

  async stopAStream({ model, ...client }, tell) {
    const controller = new AbortController();
    const stream = await clientOf(client).messages.create(asked(model, "hi", { stream: true }), {
      signal: controller.signal,
    });
    return await stopAfterFirst(stream, controller, tell);
  },
});

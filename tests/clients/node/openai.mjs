// openai-node as people set it up: a base URL and a key.

import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

import { play, stopAfterFirst, thrown } from "./play.mjs";

const clientOf = ({ url, key, ...options }) =>
  new OpenAI({ baseURL: `${url}/v1`, apiKey: key, ...options });
const user = (content) => [{ role: "user", content }];
const WEATHER = {
  name: "get_weather",
  description: "The weather in a city.",
  parameters: {
    type: "object",
    properties: { city: { type: "string" } },
    required: ["city"],
  },
};
const Person = z.object({ name: z.string(), age: z.number() });

await play({
  async chat({ model, content, ...client }) {
    const answer = await clientOf(client).chat.completions.create({ model, messages: user(content) });
    return { text: answer.choices[0].message.content, usage: answer.usage, id: answer._request_id };
  },

  async streamedChat({ model, content, ...client }) {
    const stream = await clientOf(client).chat.completions.create({
      model,
      messages: user(content),
      stream: true,
      stream_options: { include_usage: true },
    });
    const chunks = [];
    for await (const chunk of stream) chunks.push(chunk);
    return {
      chunks: chunks.length,
      text: chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""),
      usage: chunks.at(-1).usage,
    };
  },

  async toolCall({ model, streamed, ...client }) {
    const completions = clientOf(client).chat.completions;
    const asked = {
      model,
      messages: user("weather in Paris?"),
      tools: [{ type: "function", function: WEATHER }],
      tool_choice: streamed ? "auto" : { type: "function", function: { name: WEATHER.name } },
    };
    const pieces = [];
    let answer;
    if (streamed) {
      const stream = completions.stream(asked);
      stream.on("tool_calls.function.arguments.delta", (event) => pieces.push(event.arguments_delta));
      answer = await stream.finalChatCompletion();
    } else {
      answer = await completions.create(asked);
    }
    const [choice] = answer.choices;
    return { finish: choice.finish_reason, call: choice.message.tool_calls[0], pieces: pieces.length };
  },

  // The SDK runs the tool and sends its result back, until the model answers in words.
  async runTools({ model, ...client }) {
    const ran = [];
    const weather = (given) => {
      ran.push(given);
      return "sunny";
    };
    const runner = clientOf(client).chat.completions.runTools({
      model,
      messages: user("weather in Paris?"),
      tools: [{ type: "function", function: { ...WEATHER, parse: JSON.parse, function: weather } }],
    });
    return { text: await runner.finalContent(), ran };
  },

  async structured({ model, ...client }) {
    const answer = await clientOf(client).chat.completions.parse({
      model,
      messages: user("who?"),
      response_format: zodResponseFormat(Person, "person"),
    });
    return answer.choices[0].message.parsed;
  },

  async response({ model, content, ...client }) {
    const answer = await clientOf(client).responses.create({ model, input: content });
    return { text: answer.output_text, usage: answer.usage, id: answer._request_id };
  },

  async streamedResponse({ model, content, ...client }) {
    const stream = clientOf(client).responses.stream({ model, input: content });
    const types = [];
    for await (const event of stream) types.push(event.type);
    return { types, text: (await stream.finalResponse()).output_text };
  },

  async structuredResponse({ model, ...client }) {
    const answer = await clientOf(client).responses.parse({
      model,
      input: "who?",
      text: { format: zodTextFormat(Person, "person") },
    });
    return answer.output_parsed;
  },

  // It asks for base64 by itself and hands out numbers.
  async embeddings({ model, input, ...client }) {
    const answer = await clientOf(client).embeddings.create({ model, input });
    return answer.data.map((item) => Array.from(item.embedding));
  },

  async completion({ model, ...client }) {
    const answer = await clientOf(client).completions.create({ model, prompt: "once", max_tokens: 3 });
    return { text: answer.choices[0].text, finish: answer.choices[0].finish_reason };
  },

  async models(client) {
    const ids = [];
    for await (const model of clientOf(client).models.list()) ids.push(model.id);
    return ids;
  },

  async clamped({ model, ...client }) {
    const answer = clientOf(client).chat.completions.create({
      model,
      messages: user("hi"),
      max_tokens: 32_000,
    });
    return (await answer.asResponse()).headers.get("x-bulwark-clamped");
  },

  // As many times as told, with the SDK's own retries unless told otherwise.
  async refused({ model, length, times = 1, path, ...client }) {
    const api = clientOf(client);
    const content = "x".repeat(length ?? 2);
    const seen = [];
    for (let i = 0; i < times; i++) {
      seen.push(
        await thrown(() =>
          path ? api.post(path, { body: { model } })
            : api.chat.completions.create({ model, messages: user(content) }),
        ),
      );
    }
    return seen;
  },

  async aStreamThatDies({ model, ...client }) {
    const seen = [];
    const error = await thrown(async () => {
      const stream = await clientOf(client).chat.completions.create({
        model,
        messages: user("hi"),
        stream: true,
      });
      for await (const chunk of stream) seen.push(chunk);
    });
    return { pieces: seen.length, error };
  },

  async stopAStream({ model, ...client }, tell) {
    const controller = new AbortController();
    const stream = await clientOf(client).chat.completions.create(
      { model, messages: user("hi"), stream: true },
      { signal: controller.signal },
    );
    return await stopAfterFirst(stream, controller, tell);
  },

  // What people write who leave the loop: the SDK is to hang up for them.
  async breakOutOfAStream({ model, ...client }, tell) {
    const stream = await clientOf(client).chat.completions.create({
      model,
      messages: user("hi"),
      stream: true,
    });
    for await (const _ of stream) {
      tell("stopping");
      break;
    }
  },

  async stopWaiting({ model, timeout, ...client }) {
    return await thrown(() =>
      clientOf(client).chat.completions.create({ model, messages: user("hi") }, { timeout }),
    );
  },
});

// The Vercel AI SDK with both providers that people point at a server of their own.

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateObject, generateText, isStepCount, Output, streamText, tool } from "ai";
import { z } from "zod";

import { play, stopAfterFirst, thrown } from "./play.mjs";

// By what their documentation calls them: the compatible one, and the OpenAI one in both APIs.
const PROVIDERS = {
  compatible: ({ url, key }) =>
    createOpenAICompatible({ name: "bulwark", baseURL: `${url}/v1`, apiKey: key }),
  chat: ({ url, key }) => createOpenAI({ baseURL: `${url}/v1`, apiKey: key }).chat,
  responses: ({ url, key }) => createOpenAI({ baseURL: `${url}/v1`, apiKey: key }).responses,
};
const modelOf = ({ provider = "compatible", model, ...client }) => PROVIDERS[provider](client)(model);
const Person = z.object({ name: z.string(), age: z.number() });
const toolsFor = (ran) => ({
  get_weather: tool({
    description: "The weather in a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async (given) => {
      ran.push(given);
      return "sunny";
    },
  }),
});

await play({
  async text({ content, ...client }) {
    const { text, usage, finishReason } = await generateText({ model: modelOf(client), prompt: content });
    return { text, usage, finishReason };
  },

  async streamedText({ content, ...client }) {
    const result = streamText({ model: modelOf(client), prompt: content });
    const pieces = [];
    for await (const piece of result.textStream) pieces.push(piece);
    return { pieces: pieces.length, text: pieces.join(""), usage: await result.usage };
  },

  // The SDK runs the tool, sends its result back and goes on, for two steps at most.
  async tools({ streamed, ...client }) {
    const ran = [];
    const asked = {
      model: modelOf(client),
      prompt: "weather in Paris?",
      tools: toolsFor(ran),
      stopWhen: isStepCount(2),
    };
    const result = streamed ? streamText(asked) : await generateText(asked);
    if (streamed) await result.consumeStream();
    return { ran, steps: (await result.steps).length, text: await result.text };
  },

  async object(client) {
    return (await generateObject({ model: modelOf(client), schema: Person, prompt: "who?" })).object;
  },

  async output(client) {
    const { output } = await generateText({
      model: modelOf(client),
      prompt: "who?",
      output: Output.object({ schema: Person }),
    });
    return output;
  },

  async embeddings({ model, values, ...client }) {
    const provider = PROVIDERS.compatible(client);
    return (await embedMany({ model: provider.embeddingModel(model), values })).embeddings;
  },

  async refused({ length, ...client }) {
    return await thrown(() =>
      generateText({ model: modelOf(client), prompt: "x".repeat(length ?? 2) }),
    );
  },

  // What the server says in the stream goes to `onError`; what becomes of the transfer is thrown.
  async aStreamThatDies(client) {
    const pieces = [];
    const told = [];
    const onError = ({ error }) => told.push(error.message ?? JSON.stringify(error));
    const error = await thrown(async () => {
      const result = streamText({ model: modelOf(client), prompt: "hi", onError });
      for await (const piece of result.textStream) pieces.push(piece);
    });
    return { pieces, told, error };
  },

  async stopAStream(client, tell) {
    const controller = new AbortController();
    const result = streamText({
      model: modelOf(client),
      prompt: "hi",
      abortSignal: controller.signal,
      onError: () => {},
    });
    return await stopAfterFirst(result.textStream, controller, tell);
  },

  async stopWaiting({ milliseconds, ...client }) {
    const abortSignal = AbortSignal.timeout(milliseconds);
    return await thrown(() => generateText({ model: modelOf(client), prompt: "hi", abortSignal }));
  },
});

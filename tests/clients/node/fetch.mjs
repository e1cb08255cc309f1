// Node's own fetch, which is undici: what everything that is not an SDK is written with.

import { play, thrown } from "./play.mjs";

const CHAT = "/v1/chat/completions";
const chat = (client, body, more = {}) =>
  fetch(`${client.url}${CHAT}`, {
    method: "POST",
    headers: { authorization: `Bearer ${client.key}`, "content-type": "application/json" },
    body: typeof body === "string" || body instanceof Uint8Array || body instanceof ReadableStream
      ? body
      : JSON.stringify({ model: client.model, ...body }),
    ...more,
  });
const HI = { messages: [{ role: "user", content: "hi" }] };

await play({
  async chat(client) {
    const response = await chat(client, HI);
    return {
      status: response.status,
      encoding: response.headers.get("content-encoding"),
      type: response.headers.get("content-type"),
      body: await response.json(),
    };
  },

  async streamedChat(client) {
    const response = await chat(client, { ...HI, stream: true });
    const pieces = [];
    for await (const piece of response.body) pieces.push(Buffer.from(piece).toString());
    return { pieces: pieces.length, text: pieces.join("") };
  },

  async aStreamThatDies(client) {
    return await thrown(async () => {
      await (await chat(client, { ...HI, stream: true })).text();
    });
  },

  // The answer to each is read before the next is asked.
  async many({ times, ...client }) {
    const statuses = [];
    for (let i = 0; i < times; i++) {
      const response = await chat(client, HI);
      statuses.push(response.status);
      await response.text();
    }
    return statuses;
  },

  async tooLarge({ length, times, ...client }) {
    const body = Buffer.from(JSON.stringify({ model: "m", messages: [], pad: "x".repeat(length) }));
    const seen = {};
    for (let i = 0; i < times; i++) {
      let saw;
      const error = await thrown(async () => {
        const response = await chat(client, body);
        saw = `${response.status} ${(await response.json()).error.code}`;
      });
      saw = error ? `${error.name} ${error.code}` : saw;
      seen[saw] = (seen[saw] ?? 0) + 1;
    }
    return seen;
  },

  // A body of unknown length, which fetch sends in chunks.
  async upload({ pieces, ...client }) {
    const left = [...pieces];
    const body = new ReadableStream({
      pull(controller) {
        if (left.length) controller.enqueue(new TextEncoder().encode(left.shift()));
        else controller.close();
      },
    });
    const response = await chat(client, body, { duplex: "half" });
    return { status: response.status, body: await response.json() };
  },

  async stopAStream(client, tell) {
    const controller = new AbortController();
    const response = await chat(client, { ...HI, stream: true }, { signal: controller.signal });
    const reader = response.body.getReader();
    await reader.read();
    tell("stopping");
    controller.abort();
    return await thrown(() => reader.read());
  },

  async cancelAReader(client, tell) {
    const response = await chat(client, { ...HI, stream: true });
    const reader = response.body.getReader();
    await reader.read();
    tell("stopping");
    await reader.cancel();
  },

  async stopWaiting({ milliseconds, ...client }) {
    return await thrown(() => chat(client, HI, { signal: AbortSignal.timeout(milliseconds) }));
  },
});

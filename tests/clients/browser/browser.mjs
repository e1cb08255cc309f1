// A headless Chromium with a page of its own for each scene, so that no scene profits from what the
// one before was allowed.

import path from "node:path";

import puppeteer from "puppeteer-core";

import { play } from "./play.mjs";

const browser = await puppeteer.launch({
  executablePath: process.env.BULWARK_BROWSER,
  // It is in a process group of its own: by its pipe it notices if this program is killed.
  pipe: true,
  userDataDir: path.join(import.meta.dirname, "profile"),
  args: [
    "--no-sandbox", // it does not start as root with one
    "--disable-dev-shm-usage", // containers have 64 MB there
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
  ],
});

// Opens the page and plays there; the code of a scene sees only what it is given.
async function there(address, scene, given, tell) {
  const context = await browser.createBrowserContext();
  try {
    const page = await context.newPage();
    await page.exposeFunction("tell", (told) => tell(told));
    await page.goto(address);
    return await page.evaluate(scene, given);
  } finally {
    await context.close();
  }
}

// What a script can see of an answer, and of an answer that it may not see.
async function ask({ url, method = "POST", headers, body, padding, mode, times = 1 }) {
  const seen = [];
  for (let i = 0; i < times; i++) {
    try {
      const response = await fetch(url, {
        method,
        headers,
        mode,
        body: padding ? JSON.stringify({ model: "m", pad: "x".repeat(padding) }) : body,
      });
      seen.push({
        status: response.status,
        type: response.type,
        headers: Object.fromEntries(response.headers),
        text: await response.text(),
      });
    } catch (error) {
      seen.push({ error: error.name });
    }
  }
  return seen;
}

// Tells each piece as it comes.
async function read({ url, headers, body }) {
  const response = await fetch(url, { method: "POST", headers, body });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return response.status;
    await window.tell(value);
  }
}

async function stop({ url, headers, body }) {
  const controller = new AbortController();
  const response = await fetch(url, { method: "POST", headers, body, signal: controller.signal });
  const reader = response.body.getReader();
  await reader.read();
  window.tell("leaving");
  controller.abort();
  try {
    await reader.read();
  } catch (error) {
    return error.name;
  }
}

// Never returns: the page is taken away from under it.
async function holdOn({ url, headers, body }) {
  const response = await fetch(url, { method: "POST", headers, body });
  const reader = response.body.getReader();
  await reader.read();
  return "reading";
}

// openai-node, which sends a dozen fields of its own and so asks for a dozen permissions.
async function sdk({ base, key, streamed }) {
  const { OpenAI } = await import("/openai/index.mjs");
  const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: key, dangerouslyAllowBrowser: true });
  const answer = await client.chat.completions.create({
    model: "m",
    messages: [{ role: "user", content: "hi" }],
    stream: streamed,
  });
  if (!streamed) return { text: answer.choices[0].message.content, id: answer._request_id };
  let text = "";
  for await (const chunk of answer) text += chunk.choices[0]?.delta.content ?? "";
  return { text };
}

await play({
  ask: ({ page, ...given }, tell) => there(page, ask, given, tell),
  read: ({ page, ...given }, tell) => there(page, read, given, tell),
  stop: ({ page, ...given }, tell) => there(page, stop, given, tell),
  sdk: ({ page, ...given }, tell) => there(page, sdk, given, tell),

  // What people do who have read enough.
  async closeTheTab({ page: address, ...given }, tell) {
    const context = await browser.createBrowserContext();
    const page = await context.newPage();
    await page.goto(address);
    await page.evaluate(holdOn, given);
    tell("leaving");
    await context.close();
  },
});

await browser.close();

// What every program here ends in: it plays the scenes that it is told to, in the order in which it
// is told, and prints what they tell on their way and what they return, as one line of JSON each.

import readline from "node:readline";

const say = (what) => process.stdout.write(JSON.stringify(what) + "\n");

export async function play(scenes) {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { number, scene, given } = JSON.parse(line);
    try {
      const value = await scenes[scene](given, (told) => say({ number, told }));
      say({ number, value: value ?? null });
    } catch (error) {
      say({ number, failed: `${scene}: ${error.stack}` });
    }
  }
}

// What an SDK throws, as far as its users look at it; null where it throws nothing.
export async function thrown(work) {
  try {
    await work();
    return null;
  } catch (error) {
    return {
      name: error.constructor.name,
      status: error.status ?? error.statusCode ?? null,
      code: error.code ?? error.data?.error?.code ?? error.cause?.code ?? null,
      type: error.type ?? null,
      message: error.message,
      requestId: error.requestID ?? error.headers?.get?.("x-request-id") ?? null,
    };
  }
}

// Reads one piece, says so, waits to be seen and gives up: the user who presses "stop".
export async function stopAfterFirst(stream, controller, tell) {
  const seen = [];
  const error = await thrown(async () => {
    for await (const piece of stream) {
      seen.push(piece);
      if (seen.length === 1) {
        tell("stopping");
        controller.abort();
      }
    }
  });
  return { pieces: seen.length, error };
}

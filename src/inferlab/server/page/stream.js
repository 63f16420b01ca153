// One request to the server: what is sent, what comes back piece by piece, and errors in plain words.

// Something that went wrong. `ask` says that the server wants an API key.
export class Trouble extends Error {
  constructor(message, { ask = false } = {}) {
    super(message);
    this.ask = ask;
  }
}

export const headers = (key) => ({ "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) });

// Yield the JSON of each `data:` line of a response body, until [DONE] or its end.
export async function* events(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      rest += decoder.decode(value, { stream: !done });
      const lines = rest.split(/\r?\n/);
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        yield JSON.parse(data);
      }
      if (done) throw new Trouble("The connection broke in the middle of the answer.");
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// Yield { text, events, account } of one chat completion as they come. Throws Trouble.
export async function* complete(request, { key, signal }) {
  const response = await reach("/v1/chat/completions",
    { method: "POST", headers: headers(key), signal, body: JSON.stringify({ ...request, stream: true, trace: true }) });
  try {
    for await (const chunk of events(response.body)) {
      if (chunk.error) throw new Trouble(`The server gave up: ${chunk.error.message}`);
      yield {
        text: chunk.choices?.[0]?.delta?.content ?? "",
        events: chunk.inferlab?.events ?? [],
        account: chunk.inferlab?.account ?? null,
      };
    }
  } catch (error) {
    if (error instanceof Trouble || error.name === "AbortError") throw error;
    throw new Trouble("The connection broke in the middle of the answer.");
  }
}

// Fetch, or throw Trouble that says what went wrong and what to do.
export async function reach(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble("The server does not answer. Is it still running?");
  }
  if (response.ok) return response;
  const said = await response.json().then((body) => body.error?.message ?? body.detail, () => null);
  const detail = typeof said === "string" ? said : response.statusText || `status ${response.status}`;
  if (response.status === 401) {
    const wrong = new Headers(options?.headers).has("Authorization");
    throw new Trouble(wrong ? "The server does not know this API key." : "This server asks for an API key.", { ask: true });
  }
  if (response.status === 429) {
    const wait = Number(response.headers.get("Retry-After"));
    throw new Trouble(`The server has as many requests as it can hold. Try again ${
      wait > 0 ? `in ${wait} second${wait === 1 ? "" : "s"}` : "in a moment"}.`);
  }
  if (response.status < 500) throw new Trouble(`The server did not accept this: ${detail}`);
  throw new Trouble(`The server failed: ${detail}`);
}

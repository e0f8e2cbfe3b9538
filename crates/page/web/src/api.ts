// The connection to the daemon: the token, requests, and the stream of states.

export type Value = any; // Answers of the daemon, as `weir show --json` prints them.

const KEY = "weir-token";

/** Decodes a part of an address. What is not encoded correctly stays as it is. */
export function decoded(text: string): string {
  try { return decodeURIComponent(text); } catch { return text; }
}

/** Takes the token out of the address, so that it is neither seen nor shared nor kept in the history. Returns whether there was one. */
export function takeToken(): boolean {
  const match = /^#\/?token(?:=|%3d)([^&]*)/i.exec(location.hash);
  if (!match) return false;
  history.replaceState(null, "", location.pathname + location.search);
  const text = decoded(match[1]).trim();
  if (text) setToken(text);
  return text !== "";
}

export const token = () => sessionStorage.getItem(KEY) ?? "";
export const setToken = (text: string) => sessionStorage.setItem(KEY, text.trim());
/** Forgets the tokens of all nodes. */
export const forgetTokens = () => sessionStorage.clear();

/** The key under which the read-only token of all other nodes is kept. */
export const OTHERS = "others";
export const nodeToken = (node: string) => sessionStorage.getItem(`${KEY} ${node}`);
export const setNodeToken = (node: string, text: string) => sessionStorage.setItem(`${KEY} ${node}`, text.trim());

export class Refused extends Error {
  constructor(public status: number, message: string) { super(message); }
}

const headers = (bearer = token()) => ({ Authorization: `Bearer ${bearer}` });

async function answer(response: Response): Promise<Value> {
  const text = await response.text();
  let value: Value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Refused(response.status, text.slice(0, 400) || `status ${response.status}`);
  }
  if (!response.ok) throw new Refused(response.status, value?.error ?? `status ${response.status}`);
  return value;
}

export async function get(path: string, parameters: Record<string, string> = {}, signal?: AbortSignal) {
  const query = new URLSearchParams(parameters).toString();
  const options = { headers: headers(), cache: "no-store" as const, signal };
  return answer(await fetch(query ? `${path}?${query}` : path, options));
}

export async function getFrom(node: string, path: string, bearer: string, signal: AbortSignal) {
  const options = { headers: headers(bearer), cache: "no-store" as const, credentials: "omit" as const, signal };
  return answer(await fetch(node + path, options));
}

export async function change(method: string, path: string, body: Value) {
  return answer(await fetch(path, { method, headers: headers(), body: JSON.stringify(body) }));
}

/** An event of the stream. */
export type StreamEvent = { event: string; data: Value };

/** Reads the stream until it ends, and reports each arrival. `EventSource` cannot send a token. */
export async function stream(path: string, signal: AbortSignal, heard: () => void, each: (event: StreamEvent) => void) {
  const response = await fetch(path, { headers: headers(), cache: "no-store", signal });
  if (!response.ok || !response.body) { await answer(response); return; }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pieces = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    heard();
    pieces += value;
    for (let end = pieces.indexOf("\n\n"); end >= 0; end = pieces.indexOf("\n\n")) {
      const lines = pieces.slice(0, end).split("\n");
      pieces = pieces.slice(end + 2);
      const field = (name: string) => lines.find(line => line.startsWith(`${name}: `))?.slice(name.length + 2);
      const data = field("data");
      if (data !== undefined) each({ event: field("event") ?? "", data: JSON.parse(data) });
    }
  }
}

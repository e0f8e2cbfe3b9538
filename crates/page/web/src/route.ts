// The address of a view: `#/explain?packet=...`, so that it can be shared.

import { useCallback, useEffect, useState } from "preact/hooks";
import { Value, decoded } from "./api";

export type Route = { view: string; parameters: Record<string, string> };

export function read(hash = location.hash): Route {
  const [path, query] = hash.replace(/^#\/?/, "").split("?", 2);
  const view = decoded(path || "");
  // A token is not a view, and is never shown as one.
  if (/^\/?token=/i.test(view)) return { view: "", parameters: {} };
  return { view, parameters: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

export function address(view: string, parameters: Record<string, string> = {}): string {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "")).toString();
  return `#/${encodeURIComponent(view)}${query ? `?${query}` : ""}`;
}

export type Go = (view: string, parameters?: Record<string, string>) => void;

export function useRoute(): [Route, Go] {
  const [route, set] = useState(read);
  useEffect(() => {
    const changed = () => set(read());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  const go = useCallback((view: string, parameters: Record<string, string> = {}) => {
    const to = address(view, parameters);
    // Typing in a filter is one step back, not one for each letter.
    if ((read().view || "services") === view) { history.replaceState(null, "", to); dispatchEvent(new HashChangeEvent("hashchange")); }
    else location.hash = to;
  }, []);
  return [route, go];
}

/** How often a request is repeated. */
const AGAIN_MS = 10_000;

/** Asks at intervals, on request, and when something that it depends on changes. Keeps the last answer if the next fails. */
export function useAsked(ask: () => Promise<Value>, depends: unknown[]): [{ value?: Value; error?: string }, () => void] {
  const [state, set] = useState<{ value?: Value; error?: string }>({});
  const [turn, again] = useState(0);
  useEffect(() => {
    let ended = false;
    const load = () => ask().then(value => { if (!ended) set({ value }); }, why => { if (!ended) set(old => ({ ...old, error: (why as Error).message })); });
    load();
    const timer = setInterval(load, AGAIN_MS);
    return () => { ended = true; clearInterval(timer); };
  }, [turn, ...depends]);
  return [state, () => again(n => n + 1)];
}

// What the page knows: the daemon's last state, the rates between the last two states, and the connection.

import { useEffect, useState } from "preact/hooks";
import { Refused, Value, get, stream, token } from "./api";

/** A back end, with its rates. */
export type BackEnd = Record<string, any>;

export type Connection =
  | { state: "connecting"; since: number }
  | { state: "live"; since: number }
  | { state: "late"; since: number }
  | { state: "lost"; since: number; why: string }
  | { state: "refused"; since: number; status: number; why: string };

/** How long the last state is shown as live. The daemon sends one every second. */
const LIVE_MS = 10_000;

/** How long a connection may be silent. The daemon sends at least a comment every 15 s. */
const SILENT_MS = 25_000;

/** How long a hidden page keeps its stream. A browser opens six connections to a node, and streams of hidden tabs would keep them from the visible one. */
const HIDDEN_MS = 10_000;

/** The page that the daemon served when this one was loaded. */
let served: string | undefined;

const SILENT = new Refused(0, `the daemon has sent nothing for ${SILENT_MS / 1000} s`);

/** The sections of the state, as `weir show --json` has them, and the rows of back ends. */
export class Store {
  about: Value = null;
  sections: Record<string, Value> = {};
  before: Record<string, Value> = {};
  at = 0;
  beforeAt = 0;
  rows: BackEnd[] = [];
  /** When the rows were computed: less often than the sections if there are very many. */
  rowsAt = 0;
  columns: string[] = [];
  connection: Connection = { state: "connecting", since: Date.now() };
  private listeners = new Set<() => void>();
  private abort: AbortController | null = null;
  private wants = "";
  /** When anything last arrived, and when a new state last did, by the browser's clock. */
  private heardAt = 0;
  private newAt = 0;
  private hiding: ReturnType<typeof setTimeout> | undefined;
  /** The pages of apps that belong to the next state. */
  private pages: Value = undefined;
  private ended = false;

  subscribe(listener: () => void) {
    this.listeners.add(listener);
    return () => { this.listeners.delete(listener); };
  }

  changed() { this.listeners.forEach(listener => listener()); }

  /** Whether the daemon has been replaced by one with another page. */
  isOld(): boolean { return !!this.about && this.about.page !== served; }

  can(right: string): boolean { return this.about?.rights?.includes(right) ?? false; }

  /** Watches the daemon for as long as the page is open. `wants` names what else the stream should have. */
  async run() {
    const timer = setInterval(() => this.check(), 1000);
    document.addEventListener("visibilitychange", this.turned);
    await this.watch();
    document.removeEventListener("visibilitychange", this.turned);
    clearInterval(timer);
  }

  private async watch() {
    let wait = 500;
    for (;;) {
      if (document.hidden) await new Promise(done => document.addEventListener("visibilitychange", done, { once: true }));
      if (this.ended || !token()) return;
      const abort = new AbortController();
      this.abort = abort;
      const heard = () => { this.heardAt = performance.now(); };
      heard();
      try {
        this.about = await get("/v1/page", {}, abort.signal);
        served ??= this.about.page;
        heard();
        await stream(`/v1/live${this.wants}`, abort.signal, heard, event => {
          wait = 500;
          this.take(event.event, event.data);
        });
        this.lost("the daemon ended the connection");
      } catch (failed) {
        const why = abort.signal.aborted ? abort.signal.reason : failed;
        if (abort.signal.aborted && why !== SILENT) continue;
        if (why instanceof Refused && why.status === 401) {
          this.connection = { state: "refused", since: Date.now(), status: 401, why: why.message };
          this.changed();
          return;
        }
        this.lost(why instanceof Refused ? why.message : "the daemon does not answer");
      }
      await new Promise(done => setTimeout(done, wait));
      wait = Math.min(wait * 2, 5000);
    }
  }

  /** Ends watching, because the token is no longer used. */
  stop() { this.ended = true; this.abort?.abort(); }

  private lost(why: string) {
    this.connection = { state: "lost", since: this.since(), why };
    this.changed();
  }

  /** Returns when the page stopped being live. */
  private since(): number {
    const { state, since } = this.connection;
    return state === "lost" || state === "late" ? since : Date.now();
  }

  /** Notices failures that send no event: a daemon that is stuck, or a node that has lost power or its network. */
  private check() {
    const now = performance.now();
    const { state } = this.connection;
    // The stream of a hidden page has ended on purpose.
    const expects = !document.hidden && (state === "live" || (state === "connecting" && this.at));
    if (expects && now - this.newAt > LIVE_MS) {
      this.connection = { state: "late", since: Date.now() - (now - this.newAt) };
      this.changed();
    }
    if (now - this.heardAt > SILENT_MS) this.abort?.abort(SILENT);
  }

  /** Ends the stream of a hidden page after a while. */
  private turned = () => {
    clearTimeout(this.hiding);
    this.newAt = performance.now();
    if (document.hidden) this.hiding = setTimeout(() => {
      this.connection = { state: "connecting", since: Date.now() };
      this.changed();
      this.abort?.abort();
    }, HIDDEN_MS);
  };

  /** Asks for the state of apps, or no longer. */
  want(apps: boolean) {
    const wants = apps ? "?apps=true" : "";
    if (wants === this.wants) return;
    this.wants = wants;
    this.abort?.abort();
  }

  private take(event: string, data: Value) {
    if (event === "apps") this.pages = data.pages;
    if (event !== "state" && event !== "change") return;
    if (data.at_ms !== this.at) {
      // A daemon whose workers do not answer repeats its last state.
      this.newAt = performance.now();
      if (this.connection.state !== "live") this.connection = { state: "live", since: Date.now() };
    } else if (this.connection.state === "lost") {
      this.connection = { state: "late", since: this.since() };
    }
    const whole = event === "state";
    this.beforeAt = whole ? 0 : this.at;
    this.at = data.at_ms;
    this.before = whole ? {} : this.sections;
    this.sections = { ...(whole ? {} : this.sections), ...data.sections, pages: this.pages };
    if (data.back_ends) this.takeWhole(data.back_ends);
    else if (data.changed) this.takeChanges(data.changed);
    this.changed();
  }

  private takeWhole({ columns, rows }: Value) {
    this.columns = columns;
    this.rowsAt = this.at;
    this.rows = rows.map((values: Value[]) => {
      const row: BackEnd = { pps: null, bps: null, nps: null, share: null };
      columns.forEach((name: string, column: number) => { row[name] = values[column]; });
      // The place of a row changes when others come and go.
      row.id = `${row.service}\u0000${row.name}`;
      row.configured = row.state;
      row.state = stateOf(row);
      return row;
    });
  }

  private takeChanges(changes: [number, Record<string, Value>][]) {
    const seconds = (this.at - this.rowsAt) / 1000;
    this.rowsAt = this.at;
    const rows = this.rows;
    if (seconds > 0) for (const row of rows) { if (row.pps) row.pps = 0; if (row.bps) row.bps = 0; if (row.nps) row.nps = 0; }
    for (const [at, fields] of changes) {
      const row = rows[at];
      if (!row) continue;
      const grown = (name: string) => typeof fields[name] !== "number" ? 0 : Number(fields[name]) - Number(row[name] ?? 0);
      const [packets, bytes, begun] = [grown("packets"), grown("bytes"), grown("flows_begun")];
      Object.assign(row, fields, { configured: fields.state ?? row.configured });
      row.state = stateOf(row);
      if (seconds > 0) {
        [row.pps, row.bps] = [packets / seconds, 8 * bytes / seconds];
        row.nps = typeof row.flows_begun === "number" ? begun / seconds : null;
      }
    }
    const sums = new Map<string, number>();
    for (const row of rows) {
      if (row.pps === null) [row.pps, row.bps] = [0, 0];
      // Not every service keeps flows.
      if (row.nps === null && typeof row.flows_begun === "number") row.nps = 0;
      sums.set(row.service, (sums.get(row.service) ?? 0) + row.pps);
    }
    for (const row of rows) {
      const sum = sums.get(row.service) ?? 0;
      row.share = sum > 0 ? row.pps / sum : null;
    }
  }

  /** Returns the growth of a count per second, or null if it is not known yet. */
  rate(now: Value, before: Value): number | null {
    if (!this.beforeAt || this.at <= this.beforeAt) return null;
    if (typeof now !== "number") return null;
    return Math.max(0, now - (typeof before === "number" ? before : 0)) * 1000 / (this.at - this.beforeAt);
  }
}

/** Returns the state that matters to an operator: that of the configuration, or else what checks and commands say. */
const stateOf = (row: BackEnd): string => row.configured !== "up" ? row.configured : row.health || row.configured;

/** The last answers, because several plots of a view have the same prefix. */
const histories = new Map<string, { at: number; answer: Promise<Value> }>();

function historyOf(prefix: string): Promise<Value> {
  let known = histories.get(prefix);
  if (!known || performance.now() - known.at > 5000) {
    known = { at: performance.now(), answer: get("/v1/history", { series: prefix }) };
    histories.set(prefix, known);
  }
  return known.answer;
}

/** Returns the plots of the last hour whose names begin with a prefix. */
export function useHistory(prefix: string): Value {
  const [history, set] = useState<Value>(null);
  useEffect(() => {
    let ended = false;
    const load = () => historyOf(prefix).then(one => { if (!ended) set(one); }, () => undefined);
    load();
    const timer = setInterval(load, 10_000);
    return () => { ended = true; clearInterval(timer); };
  }, [prefix]);
  return history;
}

export function useStore(store: Store) {
  const [, set] = useState(0);
  useEffect(() => store.subscribe(() => set(n => n + 1)), [store]);
}

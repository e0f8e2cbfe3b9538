// The pieces of views: tables, plots, dialogs, and the parts that apps describe.

import { Component, ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { Value } from "./api";
import { count, percent, short } from "./format";
import { Store, useHistory } from "./store";

export const Card = ({ title, children, note }: { title: ComponentChildren; children: ComponentChildren; note?: ComponentChildren }) => (
  <section class="card">
    <header><h2>{title}</h2>{note && <span class="note">{note}</span>}</header>
    {children}
  </section>
);

export const Badge = ({ kind, children }: { kind: "good" | "bad" | "warn" | "plain"; children: ComponentChildren }) => (
  <span class={`badge ${kind}`}>{children}</span>
);

export const Empty = ({ children }: { children: ComponentChildren }) => <p class="empty">{children}</p>;

export const Failure = ({ children }: { children: ComponentChildren }) => <p class="failure" role="alert">{children}</p>;

/** Shows, in place of a view, why it cannot be drawn, so that one odd answer does not blank the page. */
export class Guard extends Component<{ children: ComponentChildren }, { failed?: string }> {
  componentDidCatch(why: Error) {
    console.error(why);
    this.setState({ failed: why.message });
  }
  render() {
    if (this.state.failed === undefined) return <>{this.props.children}</>;
    return <Failure>This view cannot be shown: {this.state.failed}. <button type="button" onClick={() => this.setState({ failed: undefined })}>Try again</button></Failure>;
  }
}

/** A column of a table. */
export type TableColumn<R> = {
  key: string;
  title: string;
  show: (row: R) => ComponentChildren;
  value?: (row: R) => unknown;
  right?: boolean;
  wide?: boolean;
  minor?: boolean;
};

const HEIGHT = 34;
const MARGIN = 12;

/** A table of which only the visible rows exist, so that ten thousand cost no more than fifty. */
export function Table<R extends { id: string | number }>(props: {
  label: string; columns: TableColumn<R>[]; rows: R[]; initial?: string; select?: (row: R) => void;
}) {
  const { columns, rows } = props;
  const [sort, setSort] = useState<{ key: string; down: boolean } | null>(
    props.initial ? { key: props.initial, down: true } : null);
  const [at, setAt] = useState<string | number | null>(null);
  const [top, setTop] = useState(0);
  const [tall, setTall] = useState(600);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const element = box.current!;
    const observer = new ResizeObserver(() => setTall(element.clientHeight));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  const sorted = useMemo(() => {
    const column = columns.find(one => one.key === sort?.key);
    if (!sort || !column) return rows;
    const value = column.value ?? ((row: R) => (row as Record<string, unknown>)[column.key]);
    const sign = sort.down ? -1 : 1;
    return [...rows].sort((a, b) => sign * compare(value(a), value(b)));
  }, [rows, sort, columns]);
  const first = Math.max(0, Math.min(Math.floor(top / HEIGHT) - MARGIN, sorted.length));
  const last = Math.min(sorted.length, Math.ceil((top + tall) / HEIGHT) + MARGIN);
  // One row is a tab stop, and the arrow keys move to others.
  const known = sorted.findIndex(row => row.id === at);
  const stop = known >= first && known < last ? known : Math.min(Math.ceil(top / HEIGHT), sorted.length - 1);
  const goal = useRef<string | number | null>(null);
  const body = useRef<HTMLTableSectionElement>(null);
  const focused = body.current?.contains(document.activeElement) ? document.activeElement as HTMLElement : null;
  useLayoutEffect(() => {
    const row = goal.current === null ? null : body.current!.querySelector<HTMLElement>('tr[tabindex="0"]');
    goal.current = null;
    // Sorting moves rows, and a browser takes the focus away from a row that moves.
    if (row) row.focus({ preventScroll: true });
    else if (focused?.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true });
  });
  const onKey = (event: KeyboardEvent, row: R) => {
    const page = Math.max(1, Math.floor(tall / HEIGHT) - 2);
    const steps: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -sorted.length, End: sorted.length };
    if (event.key === "Enter" || event.key === " ") props.select!(row);
    else if (event.key in steps) {
      const to = Math.max(0, Math.min(sorted.length - 1, sorted.indexOf(row) + steps[event.key]));
      goal.current = sorted[to].id;
      setAt(sorted[to].id);
      // The head of the table covers one row.
      const element = box.current!;
      if (to * HEIGHT < element.scrollTop) element.scrollTop = to * HEIGHT;
      else if ((to + 2) * HEIGHT > element.scrollTop + tall) element.scrollTop = (to + 2) * HEIGHT - tall;
      setTop(element.scrollTop);
    } else return;
    event.preventDefault();
  };
  const press = (key: string) => setSort(now => now?.key === key ? { key, down: !now.down } : { key, down: true });
  return (
    <div class="table" ref={box} tabIndex={0} role="region" aria-label={props.label}
      onScroll={event => setTop((event.target as HTMLElement).scrollTop)}>
      <table aria-rowcount={sorted.length + 1}>
        <thead>
          <tr>{columns.map(column => (
            <th key={column.key} class={classes(column)} aria-sort={sort?.key !== column.key ? "none" : sort.down ? "descending" : "ascending"}>
              <button type="button" onClick={() => press(column.key)}>
                {column.title}<span aria-hidden="true">{sort?.key === column.key ? (sort.down ? " ▾" : " ▴") : ""}</span>
              </button>
            </th>
          ))}</tr>
        </thead>
        <tbody ref={body}>
          {first > 0 && <tr class="space" aria-hidden="true"><td colSpan={columns.length} style={{ height: `${first * HEIGHT}px` }} /></tr>}
          {sorted.slice(first, last).map((row, place) => (
            <tr key={row.id} aria-rowindex={first + place + 2} class={props.select ? "choose" : ""}
              tabIndex={props.select && (first + place === stop ? 0 : -1)}
              onFocus={() => setAt(row.id)}
              onClick={props.select && (() => props.select!(row))}
              onKeyDown={props.select && (event => onKey(event, row))}>
              {columns.map(column => <td key={column.key} class={classes(column)}>{column.show(row)}</td>)}
            </tr>
          ))}
          {last < sorted.length && <tr class="space" aria-hidden="true"><td colSpan={columns.length} style={{ height: `${(sorted.length - last) * HEIGHT}px` }} /></tr>}
        </tbody>
      </table>
    </div>
  );
}

const classes = (column: { right?: boolean; wide?: boolean; minor?: boolean }) =>
  [column.right && "right", column.wide && "wide", column.minor && "minor"].filter(Boolean).join(" ");

function compare(a: unknown, b: unknown): number {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a === "number") return 1;
  if (typeof b === "number") return -1;
  return String(a ?? "").localeCompare(String(b ?? ""), "en", { numeric: true });
}

/** A plain table of a few rows. */
export function Small(props: { label?: string; head: string[]; rows: ComponentChildren[][]; right?: number[] }) {
  const right = (at: number) => props.right?.includes(at) ? "right" : "";
  return (
    <div class="small" tabIndex={0} role="region" aria-label={props.label ?? props.head.join(", ")}>
      <table>
        <thead><tr>{props.head.map((name, at) => <th class={right(at)}>{name}</th>)}</tr></thead>
        <tbody>{props.rows.map(row => <tr>{row.map((cell, at) => <td class={right(at)}>{cell}</td>)}</tr>)}</tbody>
      </table>
    </div>
  );
}

/** A question before something changes. */
export function Ask(props: { title: string; command: string; go: string; act: () => Promise<unknown>; close: () => void; children?: ComponentChildren }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [failed, setFailed] = useState("");
  const [busy, setBusy] = useState(false);
  useEffect(() => { dialog.current!.showModal(); }, []);
  const act = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await props.act();
      // The dialog closes if its subject is gone.
      dialog.current?.close();
    } catch (why) {
      setFailed((why as Error).message);
      setBusy(false);
    }
  };
  return (
    <dialog ref={dialog} onClose={props.close} aria-labelledby="ask">
      <form onSubmit={act}>
        <h2 id="ask">{props.title}</h2>
        {props.children}
        <p class="note">The same at a terminal:</p>
        <pre class="command">{props.command}</pre>
        {failed && <Failure>{failed}</Failure>}
        <div class="buttons">
          <button type="button" onClick={() => dialog.current!.close()}>Cancel</button>
          <button type="submit" class="main" disabled={busy}>{props.go}</button>
        </div>
      </form>
    </dialog>
  );
}

/** A sentence of the daemon, in which backticks mark what would be typed. */
export const Prose = ({ text }: { text: string }) =>
  <>{String(text).split("`").map((piece, at) => at % 2 ? <code key={at}>{piece}</code> : piece)}</>;

const COLOURS = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--line-6"];

/** Plots of the last hour. */
export function Plot(props: { title: string; prefix: string; unit?: string; factor?: number; lines?: number; only?: RegExp }) {
  const history = useHistory(props.prefix);
  const box = useRef<HTMLDivElement>(null);
  const all: Value[] = (history?.series ?? []).filter((one: Value) => !props.only || props.only.test(one.name));
  const series = all.map(one => ({ ...one, sum: one.values.reduce((sum: number, v: number | null) => sum + Math.abs(v ?? 0), 0) }))
    .sort((a, b) => b.sum - a.sum).slice(0, props.lines ?? COLOURS.length);
  const dark = useDark();
  useEffect(() => {
    const element = box.current;
    if (!element || !series.length) return;
    const style = getComputedStyle(document.documentElement);
    const colour = (name: string) => style.getPropertyValue(name).trim();
    const factor = props.factor ?? 1;
    const length = series[0].values.length;
    const times = Array.from({ length }, (_, at) => (history.end_ms / 1000) - (length - 1 - at) * history.interval_s);
    const axis = { stroke: colour("--faint"), grid: { stroke: colour("--rule"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const plot = new uPlot({
      width: element.clientWidth, height: 150, legend: { show: false }, cursor: { y: false, points: { show: false } },
      scales: { y: { range: (_u, _low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [{ ...axis, size: 26, values: (_u, ticks) => ticks.map(t => new Date(t * 1000).toLocaleTimeString("en-GB").slice(0, length * history.interval_s < 600 ? 8 : 5)) },
        { ...axis, size: 62, values: (_u, ticks) => ticks.map(t => short(t, props.unit ?? "")) }],
      series: [{}, ...series.map((one, at) => ({ label: one.name, stroke: colour(COLOURS[at % COLOURS.length]), width: 1.5, points: { show: false }, spanGaps: false }))],
    }, [times, ...series.map(one => one.values.map((v: number | null) => v === null ? null : v * factor))] as uPlot.AlignedData, element);
    const observer = new ResizeObserver(() => plot.setSize({ width: element.clientWidth, height: 150 }));
    observer.observe(element);
    return () => { observer.disconnect(); plot.destroy(); };
  }, [history, dark]);
  const last = (values: (number | null)[]) => { for (let at = values.length - 1; at >= 0; at--) if (values[at] !== null) return values[at]; return null; };
  return (
    <figure class="plot">
      <figcaption>{props.title}</figcaption>
      {series.length === 0 && history?.omitted > 0 ? <Empty>There is no room for more plots.</Empty> : series.length === 0 ? <Empty>Nothing yet: a point is added every {history?.interval_s ?? 10} s.</Empty> : <div ref={box} class="canvas" role="img" aria-label={`${props.title}, the last hour`} />}
      <ul class="legend">{series.map((one, at) => (
        <li><i class={`line-${at % COLOURS.length + 1}`} /> {label(one.name, props)} <b>{last(one.values) === null ? "–" : short((last(one.values) as number) * (props.factor ?? 1), props.unit ?? "")}</b></li>
      ))}{all.length > series.length && <li class="note">and {all.length - series.length} more</li>}
        {series.length > 0 && history.omitted > 0 && <li class="note">{count(history.omitted)} more are not kept, because there are too many</li>}</ul>
    </figure>
  );
}

/** Returns the part of a series' name that the title and the other lines do not say. */
function label(name: string, { prefix, only }: { prefix: string; only?: RegExp }) {
  const rest = name.slice(prefix.length).replace(/^\//, "");
  return (only ? rest.replace(only, "") : rest) || name;
}

function useDark() {
  const [, set] = useState(0);
  useEffect(() => {
    const changed = () => set(n => n + 1);
    const query = matchMedia("(prefers-color-scheme: dark)");
    query.addEventListener("change", changed);
    addEventListener("weir-theme", changed);
    return () => { query.removeEventListener("change", changed); removeEventListener("weir-theme", changed); };
  }, []);
  return document.documentElement.dataset.theme ?? String(matchMedia("(prefers-color-scheme: dark)").matches);
}

/** The parts of an app's page, which the daemon describes as for `weir top`. */
export function AppParts({ store, parts, before }: { store: Store; parts: Value[]; before: Value[] }) {
  return <>{parts.map((part: Value, at: number) => <AppPart key={at} store={store} part={part} before={before?.[at]} />)}</>;
}

function AppPart({ store, part, before }: { store: Store; part: Value; before: Value }) {
  if (part.facts) return <dl class="facts card">{part.facts.map(([name, value]: [string, string]) => <><dt>{name}</dt><dd>{value}</dd></>)}</dl>;
  if (part.bars) return <Bars title={part.bars.title} bars={part.bars.bars} />;
  if (part.map) return <Buckets map={part.map} before={before?.map} />;
  if (part.table) return <AppTable store={store} table={part.table} before={before?.table} />;
  return null;
}

function AppTable({ store, table, before }: { store: Store; table: Value; before: Value }) {
  const names = table.columns.map((column: Value, at: number) => column.holds === "name" ? at : -1).filter((at: number) => at >= 0);
  const id = (row: Value[]) => names.map((at: number) => String(row[at])).join("\u0000");
  const old = new Map<string, Value[]>((before?.rows ?? []).map((row: Value[]) => [id(row), row]));
  const grown = (row: Value[], at: number) => store.rate(row[at], old.get(id(row))?.[at]);
  const sum = (at: number) => table.rows.reduce((all: number, row: Value[]) => all + (grown(row, at) ?? 0), 0);
  const cell = (row: Value[], column: Value, at: number) => {
    switch (column.holds) {
      case "rate": return short(grown(row, at));
      case "bit_rate": { const rate = grown(row, at); return short(rate === null ? null : rate * 8); }
      case "share": { const rate = grown(row, at); const all = sum(at); return rate === null || !all ? "–" : percent(rate / all); }
      case "number": case "total": return count(row[at]);
      case "name": case "text": case "sentence": return row[at] === null ? "–" : typeof row[at] === "object" ? JSON.stringify(row[at]) : String(row[at]);
      default: return String(row[at]);
    }
  };
  const right = table.columns.map((column: Value, at: number) => ["rate", "bit_rate", "share", "number", "total"].includes(column.holds) ? at : -1);
  const rows = table.rows.map((row: Value[]) => table.columns.map((column: Value, at: number) => cell(row, column, at)));
  return <Card title={table.title} note={`${count(rows.length)} rows`}><Small head={table.columns.map((column: Value) => column.name)} rows={rows} right={right} /></Card>;
}

const Bars = ({ title, bars }: { title: string; bars: [string, number][] }) => {
  const most = Math.max(1, ...bars.map(([, n]) => n));
  return <Card title={title}><ul class="bars">{bars.map(([label, n]) => (
    <li><span>{label}</span><meter min={0} max={most} value={n} /><b>{count(n)}</b></li>))}</ul></Card>;
};

/** A map of buckets: the colour is the owner, and a bucket that was used in the last second is bright. */
function Buckets({ map, before }: { map: Value; before: Value }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const dark = useDark();
  const slots: [number | null, number][] = map.slots;
  const across = Math.min(128, Math.max(32, Math.ceil(Math.sqrt(slots.length * 4))));
  useEffect(() => {
    const element = canvas.current!;
    const size = 8;
    element.width = across * size;
    element.height = Math.ceil(slots.length / across) * size;
    const paint = element.getContext("2d")!;
    const style = getComputedStyle(document.documentElement);
    slots.forEach(([owner, uses], at) => {
      const used = before?.slots?.[at] && uses > before.slots[at][1];
      paint.globalAlpha = used ? 1 : 0.38;
      paint.fillStyle = owner === null ? style.getPropertyValue("--rule") : style.getPropertyValue(COLOURS[owner % COLOURS.length]);
      paint.fillRect((at % across) * size, Math.floor(at / across) * size, size - 1, size - 1);
    });
  }, [map, dark]);
  const held = map.owners.map((_: string, owner: number) => slots.filter(one => one[0] === owner).length);
  return (
    <Card title={map.title} note={`${count(slots.length)} buckets; bright: used in the last second`}>
      <canvas ref={canvas} class="buckets" role="img" aria-label={map.owners.map((name: string, at: number) => `${name}: ${held[at]} buckets`).join(", ")} />
      <ul class="legend">{map.owners.map((name: string, at: number) => <li><i class={`line-${at % COLOURS.length + 1}`} /> {name} <b>{count(held[at])}</b></li>)}</ul>
    </Card>
  );
}

// The views of one node: services, drops, ports and workers, apps, configuration.

import { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { BackEnd, Store } from "./store";
import { Value, change, get } from "./api";
import { parse } from "./filter";
import { count, percent, short, span } from "./format";
import { AppParts, Ask, Badge, Card, Empty, Failure, Plot, Prose, Small, Table, TableColumn } from "./parts";
import { useAsked, useRoute } from "./route";

const kindOf = (state: string) => state === "up" ? "good" : state === "down" ? "bad" : state === "unchecked" ? "plain" : "warn";

/** The states into which an operator puts a back end. */
const DRAINED = ["draining", "maintenance"];

const FILTERED = ["service", "name", "state", "reason", "weight", "mode", "address", "mac", "pps", "bps",
  "share", "flows", "nps", "packets", "bytes", "syns_repeated", "refused", "check"];

type NamedRow = BackEnd & { id: string };

/** The columns of back ends at a time by the daemon's clock, from which the browser's may differ. */
const columnsAt = (now_ms: number): TableColumn<NamedRow>[] => [
  { key: "service", title: "service", show: row => row.service },
  { key: "name", title: "back end", show: row => <b>{row.name}</b> },
  { key: "state", title: "state", show: row => <Badge kind={kindOf(row.state)}>{row.state}</Badge> },
  { key: "since_ms", title: "since", show: row => row.since_ms ? span((now_ms - row.since_ms) / 1000) : "–", right: true },
  { key: "reason", title: "why", show: row => row.reason ? <span title={row.reason}>{row.reason}</span> : "", wide: true },
  { key: "checked_s", title: "last check", show: row => <LastCheck row={row} now_ms={now_ms} /> },
  { key: "weight", title: "weight", show: row => count(row.weight), right: true },
  { key: "pps", title: "packets/s", show: row => short(row.pps), right: true },
  { key: "bps", title: "bit/s", show: row => short(row.bps), right: true },
  { key: "share", title: "share", show: row => row.share === null ? "–" : percent(row.share), right: true },
  { key: "flows", title: "flows", show: row => count(row.flows), right: true },
  { key: "nps", title: "new/s", show: row => short(row.nps), right: true },
  { key: "syns_repeated", title: "SYNs repeated", show: row => count(row.syns_repeated), right: true },
  { key: "refused", title: "refused", show: row => count(row.refused), right: true },
  { key: "address", title: "address", show: row => row.address || row.mac || "–", minor: true },
];

/** Whether the last health check passed, and how long ago that was. */
const LastCheck = ({ row, now_ms }: { row: BackEnd; now_ms: number }) => row.checked_s ?
  <span class={row.check === "failed" ? "failed" : ""}>{row.check} {span(now_ms / 1000 - row.checked_s)} ago</span> : <>–</>;

export function Services({ store }: { store: Store }) {
  const [route, go] = useRoute();
  const text = route.parameters.filter ?? "";
  const filter = useMemo(() => parse(text, FILTERED), [text]);
  const rows = store.rows as NamedRow[];
  const shown = useMemo(() => text.trim() ? rows.filter(filter.matches) : [...rows], [rows, filter, store.at]);
  const [chosen, choose] = useState<string | null>(null);
  const columns = useMemo(() => columnsAt(store.at), [store.at]);
  const services = useMemo(() => new Set(rows.map(row => row.service)).size, [rows]);
  const down = rows.filter(row => row.state === "down").length;
  const held = rows.filter(row => DRAINED.includes(row.state)).length;
  const row = rows.find(one => one.id === chosen);
  const age = (store.at - store.rowsAt) / 1000;
  const close = () => {
    choose(null);
    document.querySelector<HTMLElement>('.table tr[tabindex="0"]')?.focus({ preventScroll: true });
  };
  return <>
    <div class="tiles">
      <Tile name="services" value={count(services)} />
      <Tile name="back ends" value={count(rows.length)} />
      <Tile name="down" value={count(down)} bad={down > 0} filter="state = down" go={go} />
      <Tile name="drained" value={count(held)} filter="state = draining or state = maintenance" go={go} />
      <Tile name="packets/s" value={short(rows.reduce((sum, one) => sum + (one.pps ?? 0), 0))} />
      <Tile name="bit/s" value={short(rows.reduce((sum, one) => sum + (one.bps ?? 0), 0))} />
    </div>
    <div class="filter">
      <label for="filter">Filter</label>
      <input id="filter" type="search" spellcheck={false} autocomplete="off" value={text} placeholder="service = web and (flows > 100 or not state = up)"
        aria-invalid={!!filter.error} aria-describedby="filter-error"
        onInput={event => go("services", { filter: (event.target as HTMLInputElement).value })} />
      <span class="note" aria-live="polite">{count(shown.length)} of {count(rows.length)}</span>
      {age >= 2 && <span class="note">these rows are {span(age)} old</span>}
    </div>
    {filter.error && <pre class="failure caret" id="filter-error">{text}{"\n"}{" ".repeat(filter.error.at)}^ {filter.error.text}</pre>}
    {rows.length === 0 ? <Empty>No load balancer is configured, so there are no back ends.</Empty> :
      <Table label="back ends" columns={columns} rows={shown} select={one => choose(one.id)} />}
    {row && <BackEndPanel key={row.id} store={store} row={row} close={close} />}
  </>;
}

const Tile = (props: { name: string; value: string; bad?: boolean; filter?: string; go?: (view: string, parameters: Record<string, string>) => void }) =>
  props.filter && props.go ?
    <button type="button" class={`tile ${props.bad ? "bad" : ""}`} onClick={() => props.go!("services", { filter: props.filter! })}><b>{props.value}</b><span>{props.name}</span></button> :
    <div class={`tile ${props.bad ? "bad" : ""}`}><b>{props.value}</b><span>{props.name}</span></div>;

/** A change to be confirmed. Its path stays the same, whatever happens to rows meanwhile. */
type Order = { title: string; go: string; command: string; path: string; body: Value };

const quoted = (word: string) => /^[\w./:@-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;

function BackEndPanel({ store, row, close }: { store: Store; row: BackEnd; close: () => void }) {
  const [order, setOrder] = useState<Order | null>(null);
  const [typed, setTyped] = useState<string | null>(null);
  const weight = typed ?? String(row.weight ?? 1);
  const [done, setDone] = useState({ go: "", rowsAt: 0 });
  const panel = useRef<HTMLElement>(null);
  useEffect(() => { panel.current!.focus({ preventScroll: true }); }, []);
  const names = `${quoted(row.service)} ${quoted(row.name)}`;
  const path = `/v1/services/${encodeURIComponent(row.service)}/back_ends/${encodeURIComponent(row.name)}`;
  const orders: Order[] = [
    { title: `Drain ${row.name} of ${row.service}?`, go: "Drain", command: `weir lb drain ${names}`, path, body: { state: "draining" } },
    { title: `Put ${row.name} of ${row.service} into maintenance?`, go: "Maintenance", command: `weir lb maintenance ${names}`, path, body: { state: "maintenance" } },
    { title: `Enable ${row.name} of ${row.service}?`, go: "Enable", command: `weir lb enable ${names}`, path, body: { state: "up" } },
  ];
  const act = async ({ go, path, body }: Order) => {
    await change("PATCH", path, body);
    setTyped(null);
    setDone({ go, rowsAt: store.rowsAt });
  };
  const effects: Record<string, string> = {
    Drain: "Its flows stay; it gets no new ones.", Maintenance: "Its flows move to other back ends, and it gets no new ones.",
    Enable: "It gets new flows again.",
  };
  const facts: [string, ComponentChildren][] = [
    ["state", `${row.state}${row.reason ? `: ${row.reason}` : ""}`], ["last check", <LastCheck row={row} now_ms={store.at} />], ["mode", row.mode], ["address", row.address || "–"],
    ["MAC", row.mac || "–"], ["weight", count(row.weight)], ["packets", count(row.packets)], ["bytes", count(row.bytes)],
    ["flows", count(row.flows)], ["flows begun", count(row.flows_begun)], ["SYNs repeated", count(row.syns_repeated)],
  ];
  return (
    <aside class="panel" ref={panel} tabIndex={-1} aria-label={`back end ${row.name}`}
      onKeyDown={event => { if (event.key === "Escape" && !order) close(); }}>
      <header><h2>{row.name}</h2><span class="note">{row.service}</span><button type="button" onClick={close} aria-label="Close">×</button></header>
      <dl class="facts">{facts.map(([name, value]) => <><dt>{name}</dt><dd>{value}</dd></>)}</dl>
      {store.can("control") ? <div class="buttons">
        {orders.filter(one => one.body.state === "up" ? DRAINED.includes(row.state) : one.body.state !== row.state).map(one => <button type="button" onClick={() => setOrder(one)}>{one.go}</button>)}
        <label>weight <input type="number" min={0} max={65535} value={weight} onInput={event => setTyped((event.target as HTMLInputElement).value)} /></label>
        <button type="button" disabled={!/^\d{1,5}$/.test(weight)} onClick={() => setOrder({
          title: `Set the weight of ${row.name} of ${row.service} to ${weight}?`, go: "Set weight",
          command: `weir lb weight ${names} ${weight}`, path, body: { weight: Number(weight) },
        })}>Set weight</button>
      </div> : <p class="note">This token is read-only. With the control token, the page can drain this back end and set its weight.</p>}
      {done.rowsAt === store.rowsAt && <p class="note" role="status">{done.go}: done. The next update of the rows will show it.</p>}
      {order && <Ask title={order.title} go={order.go} command={order.command} act={() => act(order)} close={() => { setOrder(null); panel.current?.focus(); }}>
        {effects[order.go] && <p>{effects[order.go]}</p>}
      </Ask>}
    </aside>
  );
}

export function Drops({ store }: { store: Store }) {
  const [, go] = useRoute();
  const drops: Value[] = store.sections.drops ?? [];
  const before = new Map<string, number>((store.before.drops ?? []).map((one: Value) => [one.reason, one.frames]));
  const rows = drops.map(one => ({ ...one, rate: store.rate(one.frames, before.get(one.reason) ?? 0) }))
    .sort((a, b) => (b.rate ?? 0) - (a.rate ?? 0) || b.frames - a.frames);
  const advice = store.about?.reasons ?? {};
  const lost = (store.sections.ports ?? []).filter((port: Value) => port.lost_before > 0 || port.starved > 0);
  return <>
    <Ledger store={store} />
    <div class="plots">
      <Plot title="Drops per second" prefix="drops" />
      <Plot title="Frames per second" prefix="node" />
    </div>
    {rows.length === 0 && <Empty>No frame has been dropped since the daemon started.</Empty>}
    {rows.map(one => (
      <Card key={one.reason} title={<code>{one.reason}</code>} note={<><b>{short(one.rate)}</b>/s, {count(one.frames)} in all</>}>
        <p><Prose text={one.meaning} /></p>
        {advice[one.reason]?.advice && <p><b>What to do:</b> <Prose text={advice[one.reason].advice} /></p>}
        {one.flows?.length > 0 && <Small label={`flows that lose most frames: ${one.reason}`} head={["flow that loses most", "frames, about", ""]} right={[1]}
          rows={one.flows.map((flow: Value) => [<code>{flow.flow}</code>, count(flow.frames),
            recipe(flow.flow) ? <button type="button" class="link" title="as if it arrived on the first port" onClick={() => go("explain", { packet: recipe(flow.flow)! })}>explain</button> : ""])} />}
      </Card>
    ))}
    {lost.length > 0 && <Card title="Lost before weir" note="not in the ledger: weir never received these frames">
      <Small head={["port", "lost", "no free frame"]} right={[1, 2]} rows={lost.map((port: Value) => [port.name, count(port.lost_before), count(port.starved)])} />
    </Card>}
  </>;
}

/** Turns a flow as it is shown, `udp 10.0.0.1:40000 > 10.0.0.9:53`, into a packet in words. */
export function recipe(flow: string): string | null {
  const match = /^(tcp|udp) \[?([0-9a-f.:]+?)\]?:(\d+) (?:>|->) \[?([0-9a-f.:]+?)\]?:(\d+)$/.exec(flow);
  return match ? `src=${match[2]} dst=${match[4]} proto=${match[1]} sport=${match[3]} dport=${match[5]}` : null;
}

function Ledger({ store }: { store: Store }) {
  const [now, before] = [store.sections.ledger, store.before.ledger];
  if (!now) return null;
  const dropped = (ledger: Value) => Object.values(ledger?.dropped ?? {}).reduce((sum: number, n: any) => sum + n, 0) as number;
  const parts: [string, number, number][] = ["received", "originated", "copied", "transmitted", "to_kernel", "to_app", "held"]
    .map(name => [name.replace("_", " "), now[name], before?.[name] ?? 0]);
  parts.push(["dropped", dropped(now), dropped(before)]);
  return (
    <Card title="Where every frame went" note={store.sections.balances === false ? <Badge kind="bad">does not balance</Badge> : <Badge kind="good">balances</Badge>}>
      <div class="tiles">{parts.map(([name, all, old]) => <div class={`tile ${name === "dropped" && (store.rate(all, old) ?? 0) > 0 ? "bad" : ""}`}>
        <b>{short(store.rate(all, before ? old : all))}/s</b><span>{name}: {count(all)}</span></div>)}</div>
    </Card>
  );
}

export function Ports({ store }: { store: Store }) {
  const old = new Map<string, Value>((store.before.ports ?? []).map((one: Value) => [one.name, one]));
  const oldWorkers: Value[] = store.before.workers ?? [];
  const rate = (port: Value, name: string, factor = 1) => {
    const grown = store.rate(port[name], (old.get(port.name) ?? port)[name]);
    return short(grown === null ? null : grown * factor);
  };
  const kernel: Value[] = store.sections.kernel ?? [];
  const isInKernel = kernel.some(port => port.runs || port.decided > 0);
  return <>
    <div class="plots">
      <Plot title="Received, packets/s" prefix="port" only={/\/received$/} />
      <Plot title="Transmitted, packets/s" prefix="port" only={/\/transmitted$/} />
      <Plot title="Received, bit/s" prefix="port" only={/\/received_bytes$/} factor={8} />
      <Plot title="Transmitted, bit/s" prefix="port" only={/\/transmitted_bytes$/} factor={8} />
      <Plot title="Received by workers, packets/s" prefix="worker" only={/\/received$/} />
      {isInKernel && <Plot title="Handled in the kernel, packets/s" prefix="kernel" only={/\/decided$/} />}
    </div>
    <Card title="Ports">
      <Small head={["port", "link", "mode", "in/s", "in bit/s", "out/s", "out bit/s", "to kernel/s", "lost before", "starved", "oversize"]} right={[3, 4, 5, 6, 7, 8, 9, 10]}
        rows={(store.sections.ports ?? []).map((port: Value) => [<b>{port.name}</b>,
          port.link ? <Badge kind={port.link === "up" ? "good" : "bad"}>{port.link}</Badge> : "–", port.mode,
          rate(port, "received"), rate(port, "received_bytes", 8), rate(port, "transmitted"), rate(port, "transmitted_bytes", 8),
          rate(port, "to_kernel"), count(port.lost_before), count(port.starved), count(port.oversize)])} />
    </Card>
    <Card title="Workers" note="times of a breath by the processor's clock, in microseconds">
      <Small head={["worker", "received/s", "handed over/s", "breaths/s", "median", "99 %", "99.99 %", "longest"]} right={[0, 1, 2, 3, 4, 5, 6, 7]}
        rows={(store.sections.workers ?? []).map((worker: Value, at: number) => [worker.worker,
          ...["received", "handed_over", "breaths"].map(name => short(store.rate(worker[name], (oldWorkers[at] ?? worker)[name]))),
          ...["p50_us", "p99_us", "p9999_us", "longest_us"].map(name => count(worker[name]))])} />
    </Card>
    <Card title="The program in the kernel">
      {isInKernel ?
        <Small head={["port", "runs", "handled there", "left to the engine", "why not"]} right={[2]} rows={kernel.map(port => [<b>{port.port}</b>,
          <Badge kind={port.runs ? "good" : "plain"}>{port.runs ? "in the kernel" : "in the engine"}</Badge>, count(port.decided),
          Object.entries(port.left ?? {}).map(([why, n]) => `${why}: ${count(n)}`).join(", ") || "–", port.obstacle ?? ""])} /> :
        <Empty>All frames are handled by the engine{kernel.find(port => port.obstacle) ? `: ${kernel.find(port => port.obstacle)!.obstacle}` : "."}</Empty>}
    </Card>
    <Card title="Pipes">
      <Small head={["pipe", "type", "entries", "flows", "capacity", "hits", "misses", "then", "on a miss"]} right={[2, 3, 4, 5, 6]}
        rows={(store.sections.pipes ?? []).map((pipe: Value) => [<b>{pipe.name}</b>, pipe.type, count(pipe.entries), count(pipe.flows), count(pipe.capacity),
          count(pipe.hits), count(pipe.misses), pipe.forward, pipe.miss])} />
    </Card>
  </>;
}

const ending = (word: string) => new RegExp(`/${word.replace(/[^\w ]/g, "\\$&")}$`);

/** The page of one kind of apps, as in `weir top`. */
export function AppView({ store, kind }: { store: Store; kind: string }) {
  const find = (sections: Record<string, Value>) => (sections.pages ?? []).filter((page: Value) => page.kind === kind);
  const [pages, before] = [find(store.sections), find(store.before)];
  // Several tables may have the same columns.
  const columns: Value[] = pages.flatMap((page: Value) => page.parts ?? []).flatMap((part: Value) => part.table?.columns ?? []);
  const plotted = [...new Map(columns.filter(column => column.plot).map(column => [column.name, column])).values()];
  return <>
    <div class="plots">
      {plotted.map(column => <Plot key={column.name} title={column.plot} prefix={`app/${kind}`} only={ending(column.name)} factor={column.holds === "bit_rate" ? 8 : 1} />)}
    </div>
    {pages.length === 0 && <Empty>No app of this kind has answered yet.</Empty>}
    {pages.map((page: Value, at: number) => page.error ? <Failure>{page.title}: {page.error}</Failure> :
      <AppParts key={page.title} store={store} parts={page.parts} before={before[at]?.parts} />)}
  </>;
}

export function Configuration({ store }: { store: Store }) {
  const generation = store.sections.generation;
  const [asked, again] = useAsked(() => get("/v1/configuration"), [generation, store.connection.state]);
  const answer = asked.value;
  if (!answer) return asked.error ? <Failure>{asked.error}</Failure> : <Empty>Reading…</Empty>;
  const same: boolean = answer.same;
  const moved = (answer.plan ?? []).filter((one: Value) => one.moved > 0 || one.flows_end);
  return <>
    {asked.error && <Failure>{asked.error}</Failure>}
    <Card title={<code>{answer.file}</code>} note={<>generation {count(answer.generation)} · {same ? <Badge kind="good">the file is as loaded</Badge> : <Badge kind="warn">the file has changed</Badge>}
      {" "}<button type="button" onClick={again}>Compare again</button></>}>
      {answer.file_error && <Failure>{answer.file_error}</Failure>}
      {answer.edited && <p>Changes made at run time apply on top of the file; <code>weir lb reset</code> discards them.</p>}
      {!same && answer.file_text !== null && <>
        <p><Prose text={answer.refused ? "A reload would be refused, and the running configuration would stay:" : "`weir reload` would apply this difference:"} /></p>
        {answer.refused && <pre class="failure">{answer.refused}</pre>}
        <Difference before={answer.loaded} after={answer.file_text} />
        {!answer.refused && (moved.length === 0 ? <p>No flow would move to another target.</p> :
          <Small head={["group", "flows that move", "at least", "why", ""]} right={[1, 2]} rows={moved.map((one: Value) => [<b>{one.name}</b>, percent(one.moved), percent(one.least),
            one.why.join("; "), one.flows_end ? <Badge kind="bad">flows start over</Badge> : ""])} />)}
      </>}
    </Card>
    <Card title="As loaded" note="secrets are hidden"><pre class="text" tabIndex={0}>{answer.loaded}</pre></Card>
  </>;
}

function Difference({ before, after }: { before: string; after: string }) {
  const lines = difference(before.split("\n"), after.split("\n"));
  return <pre class="text diff" tabIndex={0}>{lines.map(([sign, line]) => <span class={sign === "+" ? "added" : sign === "-" ? "removed" : ""}>{sign} {line}{"\n"}</span>)}</pre>;
}

/** Compares lines. Long texts that differ in much are shown as replaced. */
export function difference(before: string[], after: string[]): [string, string][] {
  let [first, endA, endB] = [0, before.length, after.length];
  while (first < endA && first < endB && before[first] === after[first]) first++;
  while (endA > first && endB > first && before[endA - 1] === after[endB - 1]) { endA--; endB--; }
  const [a, b] = [before.slice(first, endA), after.slice(first, endB)];
  const middle: [string, string][] = [];
  if (a.length * b.length > 4_000_000) {
    middle.push(...a.map(line => ["-", line] as [string, string]), ...b.map(line => ["+", line] as [string, string]));
  } else {
    const table = Array.from({ length: a.length + 1 }, () => new Uint32Array(b.length + 1));
    for (let i = a.length - 1; i >= 0; i--)
      for (let j = b.length - 1; j >= 0; j--)
        table[i][j] = a[i] === b[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
    let [i, j] = [0, 0];
    while (i < a.length || j < b.length) {
      if (i < a.length && j < b.length && a[i] === b[j]) { middle.push([" ", a[i]]); i++; j++; }
      else if (i < a.length && (j >= b.length || table[i + 1][j] >= table[i][j + 1])) middle.push(["-", a[i++]]);
      else middle.push(["+", b[j++]]);
    }
  }
  const around = 3;
  const lead = before.slice(Math.max(0, first - around), first).map(line => [" ", line] as [string, string]);
  const rest = before.slice(endA, endA + around).map(line => [" ", line] as [string, string]);
  return [...lead, ...middle, ...rest];
}

// Explain: what happens to a packet, step by step, as `weir explain --live` says it.

import { useEffect, useState } from "preact/hooks";
import { Value, get } from "./api";
import { Badge, Card, Empty, Failure, Prose } from "./parts";
import { Store } from "./store";
import { useRoute } from "./route";

/** Returns the bytes in a line of tcpdump -xx or xxd: between the offset and the characters. */
function dumped(line: string): string | undefined {
  const bytes = /^\s*(?:0x)?[0-9a-f]{4,8}:\s+(\S.*)$/i.exec(line)?.[1].split(/\s{2}/, 1)[0];
  return bytes && /^[0-9a-f\s]+$/i.test(bytes) ? bytes : undefined;
}

/** Whether bytes are an IP packet without an Ethernet header: its version and its length say so. */
export function isBare(hex: string): boolean {
  const number = (at: number, digits: number) => parseInt(hex.slice(at, at + digits), 16);
  return (hex[0] === "4" && number(4, 4) * 2 === hex.length) || (hex[0] === "6" && (number(8, 4) + 40) * 2 === hex.length);
}

/** Returns the query for what was typed: a packet in words, a 5-tuple, or a frame's bytes in hex. */
export function question(text: string): { packet?: string; hex?: string } {
  const plain = text.trim();
  const lines = plain.split("\n");
  const dump = lines.map(dumped).filter(bytes => bytes !== undefined);
  const bytes = (dump.length ? dump : lines).join(" ").replace(/0x/gi, "").replace(/[\s:,-]/g, "");
  if (/^[0-9a-f]+$/i.test(bytes) && bytes.length >= 28 && bytes.length % 2 === 0 && !plain.includes("=")) return { hex: bytes.toLowerCase() };
  const tuple = /^(tcp|udp)\s+(\S+)\s+(?:(?:->|>|to)\s+)?(\S+)$/i.exec(plain);
  const end = (word: string) => /^\[?([0-9a-fA-F.:]+?)\]?:(\d+)$/.exec(word);
  const [from, to] = [tuple && end(tuple[2]), tuple && end(tuple[3])];
  if (tuple && from && to) return { packet: `src=${from[1]} dst=${to[1]} proto=${tuple[1].toLowerCase()} sport=${from[2]} dport=${to[2]}` };
  return { packet: plain.replace(/\s+/g, " ") };
}

const BARE = "These bytes are an IP packet without its Ethernet header: paste the whole frame, as `tcpdump -xx` prints it.";

export function Explain({ store }: { store: Store }) {
  const [route, go] = useRoute();
  const { packet = "", hex = "", port = "" } = route.parameters;
  const [text, setText] = useState(hex || packet);
  const [on, setOn] = useState(port);
  const [answer, setAnswer] = useState<{ value?: Value; error?: string; waits?: boolean }>({});
  const [turn, setTurn] = useState(0);
  const ports: string[] = (store.sections.ports ?? []).map((one: Value) => one.name);
  useEffect(() => {
    setText(hex || packet);
    setOn(port);
    if (!hex && !packet) { setAnswer({}); return; }
    let ended = false;
    if (isBare(hex)) { setAnswer({ error: BARE }); return; }
    // The previous packet's walk must not be shown with this command.
    setAnswer({ waits: true });
    const asked: Record<string, string> = hex ? { hex } : { packet };
    if (port) asked.port = port;
    get("/v1/explain", asked).then(value => { if (!ended) setAnswer({ value }); }, why => { if (!ended) setAnswer({ error: (why as Error).message }); });
    return () => { ended = true; };
  }, [packet, hex, port, turn]);
  const submit = (event: Event) => {
    event.preventDefault();
    const asked: Record<string, string> = { ...question(text) };
    if (on) asked.port = on;
    go("explain", asked);
    setTurn(n => n + 1);
  };
  return <>
    <form class="card ask" onSubmit={submit}>
      <label for="packet">A packet in words, a 5-tuple, or a frame's bytes in hex</label>
      <textarea id="packet" rows={3} spellcheck={false} value={text} onInput={event => setText((event.target as HTMLTextAreaElement).value)}
        onKeyDown={event => { if (event.key === "Enter" && !event.shiftKey) submit(event); }}
        placeholder={"udp 198.51.100.4:40000 > 192.0.2.53:53\nsrc=198.51.100.4 dst=192.0.2.53 proto=udp sport=40000 dport=53"} />
      <div class="buttons">
        <label>arrives on <select value={on} onChange={event => setOn((event.target as HTMLSelectElement).value)}>
          <option value="">the first port</option>
          {ports.map(name => <option value={name}>{name}</option>)}
        </select></label>
        <button type="submit" class="main">Explain</button>
        <span class="note">Nothing is sent. The address of this view can be shared.</span>
      </div>
    </form>
    {answer.error && <Failure><Prose text={answer.error} /></Failure>}
    {answer.value ? <Walk walk={answer.value} command={command(hex, packet, port)} /> : answer.waits ? <Empty>Asking…</Empty> : !answer.error && <Empty>The walk of the packet through the running program appears here, with the entries and flows that it has now.</Empty>}
  </>;
}

const command = (hex: string, packet: string, port: string) =>
  hex ? `curl --unix-socket /run/weir/weir.sock 'http://weir/v1/explain?hex=${hex}${port ? `&port=${port}` : ""}'`
    : `weir explain --live --packet '${packet.replaceAll("'", "'\\''")}'${port ? ` --port ${port}` : ""}`;

function verdict(value: Value): [string, "good" | "bad" | "warn" | "plain"] {
  if (value?.transmit !== undefined) return [`transmit on ${value.transmit}`, "good"];
  if (value?.kernel !== undefined) return ["pass to the kernel", "plain"];
  if (value?.app !== undefined) return [`pass to the app ${value.app}`, "plain"];
  if (value?.drop !== undefined) return [`drop: ${value.drop}`, "bad"];
  if (value?.undecided !== undefined) return [`not decided here: ${value.undecided}`, "warn"];
  return [JSON.stringify(value), "warn"];
}

function Walk({ walk, command }: { walk: Value; command: string }) {
  const [said, kind] = verdict(walk.verdict);
  const [plain, setPlain] = useState(false);
  return <>
    <Card title={<>Verdict: <Badge kind={kind}>{said}</Badge></>} note={<button type="button" onClick={() => setPlain(!plain)} aria-pressed={plain}>{plain ? "steps" : "text"}</button>}>
      <p class="mono">{walk.frame}</p>
      {walk.runs && <p>Runs <b>{walk.runs.in === "kernel" ? "in the kernel" : "in the engine"}</b>{walk.runs.why ? `: ${walk.runs.why}` : ""}</p>}
      {walk.agrees === false && <Failure>The engine says otherwise: please report this.</Failure>}
      {walk.limit && <p>{walk.limit}</p>}
      {(walk.wrong_checksums ?? []).map((one: Value) => <p>Wrong checksum of {one.header}: found {one.found}, expected {one.expected}</p>)}
      {(walk.obstacles ?? []).map((why: string) => <Failure>{why}</Failure>)}
      <p class="note">The same at a terminal:</p>
      <pre class="command">{command}</pre>
    </Card>
    {plain ? <Card title="As text"><pre class="text" id="walk-text" tabIndex={0}>{walk.text}</pre></Card> :
      <ol class="walk">{(walk.pipes ?? []).map((step: Value, at: number) => <Step key={at} step={step} at={at} />)}</ol>}
  </>;
}

function Step({ step, at }: { step: Value; at: number }) {
  const lookup = step.lookup ?? {};
  const nearest = lookup.nearest;
  return (
    <li class="card step">
      <header><h2><span class="number">{at + 1}</span> {step.pipe}</h2><span class="note">{step.type}</span>
        {lookup.hit !== undefined ? <Badge kind="good">hit</Badge> : lookup.no_target ? <Badge kind="bad">no target</Badge> : <Badge kind="warn">miss</Badge>}</header>
      <dl class="facts">
        {(step.key ?? []).map((field: Value) => <><dt class="mono">{field.field}</dt><dd><span class="mono">{field.value ?? "absent"}</span> <span class="note">{field.asked}</span></dd></>)}
        {step.flow && <><dt>flow</dt><dd>{[step.flow.key, step.flow.known].filter(Boolean).join(", ")}</dd></>}
        {step.bucket && <><dt>bucket</dt><dd>{step.bucket}</dd></>}
        {lookup.hit !== undefined && <><dt>hit</dt><dd><code>{lookup.hit}</code>{lookup.run_time ? " (added at run time)" : ""}{lookup.at ? <span class="note"> at {lookup.at}</span> : ""}</dd></>}
        {(lookup.miss ?? []).map((one: Value) => <><dt>differs</dt><dd><code>{one.field}</code>: wanted <b>{one.wanted}</b>, is <b>{one.actual}</b></dd></>)}
        {nearest && <><dt>nearest miss</dt><dd><code>{nearest.entry}</code>{nearest.at ? <span class="note"> at {nearest.at}</span> : ""}
          <ul>{nearest.differences.map((one: Value) => <li><code>{one.field}</code>: wanted <b>{one.wanted}</b>, is <b>{one.actual}</b></li>)}</ul></dd></>}
        {step.counter && <><dt>counts</dt><dd>{step.counter}</dd></>}
        {(step.actions ?? []).map((action: string) => <><dt>action</dt><dd class="mono">{action}</dd></>)}
        {step.forward && <><dt>forward</dt><dd>{step.forward}</dd></>}
      </dl>
    </li>
  );
}

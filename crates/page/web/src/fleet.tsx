// Fleet: several nodes beside each other. Ring checksums and versions that differ are red.

import { useEffect, useState } from "preact/hooks";
import { Refused, Value, getFrom, nodeToken, setNodeToken, token } from "./api";
import { Badge, Card, Empty, Prose } from "./parts";
import { Store } from "./store";
import { count, span } from "./format";

type Node = { url: string; value?: Value; since?: number; error?: string; refused?: boolean };

const EVERY = 3000;
const PATIENCE = 4000;

async function look(url: string): Promise<Partial<Node>> {
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort(), PATIENCE);
  try {
    return { value: await getFrom(url, "/v1/node", abort.signal), error: undefined, refused: false };
  } catch (why) {
    if (why instanceof Refused) return { error: why.message, refused: why.status === 401 };
    if (abort.signal.aborted) return { error: "does not answer in time" };
    return { error: "cannot be reached. Either it is down, or its certificate has expired or is not trusted by this browser, or its `control: nodes` does not have this page's address" };
  } finally {
    clearTimeout(timer);
  }
}

export function Fleet({ store }: { store: Store }) {
  const urls: string[] = store.about?.nodes?.length ? store.about.nodes : [location.origin];
  const [nodes, setNodes] = useState<Record<string, Node>>({});
  const [turn, again] = useState(0);
  useEffect(() => {
    let ended = false;
    const ask = () => urls.forEach(async url => {
      const found = await look(url);
      if (ended) return;
      setNodes(all => {
        const old = all[url];
        const since = !!found.error === !!old?.error && old?.since ? old.since : Date.now();
        return { ...all, [url]: { ...old, url, ...found, since } };
      });
    });
    ask();
    const timer = setInterval(ask, EVERY);
    return () => { ended = true; clearInterval(timer); };
  }, [urls.join(" "), turn]);
  const live = urls.map(url => nodes[url]).filter(node => node?.value && !node.error).map(node => node.value);
  const common = (of: (value: Value) => string) => mostCommon(live.map(of));
  const [version, ring, effective, configuration] = [common(v => v.version), common(v => v.rings.configured),
    common(v => v.rings.effective ?? ""), common(v => v.configuration)];
  const flag = (value: string, usual: string) => <Badge kind={value === usual ? "good" : "bad"}><span class="mono">{value.slice(0, 12) || "–"}</span></Badge>;
  return <>
    {urls.length === 1 && <Empty>This configuration lists no other nodes: write their addresses to <code>control: nodes</code>.</Empty>}
    <div class="nodes">{urls.map(url => {
      const node = nodes[url];
      const value = node?.value;
      const flows = (value?.flows ?? []).reduce((sum: number, one: Value) => sum + one.flows, 0);
      return (
        <Card key={url} title={<a href={`${url}/#/services`}>{url}</a>} note={url === location.origin ? "this node" : ""}>
          {!node ? <Empty>Asking…</Empty> : <>
            {node.error ? <p><Badge kind="bad">unreachable</Badge> for {span((Date.now() - (node.since ?? Date.now())) / 1000)}: <Prose text={node.error} />. <a href={url} target="_blank" rel="noreferrer">Open it</a> to see what the browser says.</p> : <p><Badge kind="good">answers</Badge></p>}
            {node.refused && <TokenFor url={url} done={() => again(n => n + 1)} />}
            {value && <dl class={`facts ${node.error ? "stale" : ""}`}>
              <dt>version</dt><dd>{flag(value.version, version)}</dd>
              <dt>ring as configured</dt><dd>{flag(value.rings.configured, ring)}</dd>
              <dt>ring now</dt><dd>{flag(value.rings.effective ?? "", effective)}</dd>
              <dt>configuration</dt><dd>{flag(value.configuration, configuration)}</dd>
              <dt>services</dt><dd>{count(value.rings.services.length)}</dd>
              <dt>flows</dt><dd>{count(flows)}</dd>
              <dt>down</dt><dd>{down(value)}</dd>
            </dl>}
          </>}
        </Card>
      );
    })}</div>
  </>;
}

const down = (value: Value) => {
  const all = value.rings.services.flatMap((one: Value) => one.back_ends.filter((end: Value) => end.health === "down").map((end: Value) => `${one.name}/${end.name}`));
  return all.length === 0 ? "none" : <Badge kind="bad">{all.slice(0, 5).join(", ")}{all.length > 5 ? ` and ${all.length - 5} more` : ""}</Badge>;
};

function mostCommon(values: string[]): string {
  const counts = new Map<string, number>();
  values.forEach(value => counts.set(value, (counts.get(value) ?? 0) + 1));
  // With two nodes of different versions, both are red.
  const sorted = [...counts].sort((a, b) => b[1] - a[1]);
  return sorted.length > 1 && sorted[0][1] === sorted[1][1] ? "\u0000" : sorted[0]?.[0] ?? "";
}

function TokenFor({ url, done }: { url: string; done: () => void }) {
  const [text, setText] = useState(nodeToken(url) === token() ? "" : nodeToken(url));
  return <form class="buttons" onSubmit={event => { event.preventDefault(); setNodeToken(url, text); done(); }}>
    <label>its token <input type="password" autocomplete="off" value={text} onInput={event => setText((event.target as HTMLInputElement).value)} /></label>
    <button type="submit">Use</button>
  </form>;
}

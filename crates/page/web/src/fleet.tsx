// Fleet: several nodes beside each other. Ring checksums and versions that differ are red.

import { useEffect, useState } from "preact/hooks";
import { OTHERS, Refused, Value, getFrom, nodeToken, setNodeToken, token } from "./api";
import { Badge, Card, Empty, Prose } from "./parts";
import { Store } from "./store";
import { count, span } from "./format";

/** What is compared. */
type Facts = {
  version: string; configured: string; effective: string; configuration: string; services: number; flows: number; down: string[];
};

type Node = { url: string; value?: Facts; since?: number; error?: string; refused?: boolean };

const EVERY = 3000;
const PATIENCE = 4000;

const text = (value: Value): string => typeof value === "string" ? value : "";
const list = (value: Value): Value[] => Array.isArray(value) ? value : [];

/** Reads an answer. That of another version may lack any part. */
function facts(answer: Value): Facts {
  const rings = answer?.rings;
  const services = list(rings?.services);
  return {
    version: text(answer?.version), configuration: text(answer?.configuration),
    configured: text(rings?.configured), effective: text(rings?.effective), services: services.length,
    flows: list(answer?.flows).reduce((sum: number, one: Value) => sum + (Number(one?.flows) || 0), 0),
    down: services.flatMap(one => list(one?.back_ends).filter(end => end?.health === "down").map(end => `${one.name}/${end.name}`)),
  };
}

/** Returns the token for a node, if there is one. Other nodes never get a control token of this one. */
function bearer(store: Store, url: string): string | null {
  if (url === location.origin) return token();
  return nodeToken(url) ?? (store.can("control") ? nodeToken(OTHERS) : token());
}

async function look(url: string, bearer: string): Promise<Partial<Node>> {
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort(), PATIENCE);
  try {
    return { value: facts(await getFrom(url, "/v1/node", bearer, abort.signal)), error: undefined, refused: false };
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
      const own = bearer(store, url);
      if (own === null) return;
      const found = await look(url, own);
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
  }, [urls.join(" "), turn, store.about === null]);
  const withoutToken = urls.filter(url => bearer(store, url) === null);
  const live = urls.map(url => nodes[url]).filter(node => node?.value && !node.error).map(node => node.value!);
  const common = (of: (value: Facts) => string) => mostCommon(live.map(of));
  const [version, ring, effective, configuration] = [common(v => v.version), common(v => v.configured),
    common(v => v.effective), common(v => v.configuration)];
  const flag = (value: string, usual: string) => <Badge kind={value === usual ? "good" : "bad"}><span class="mono">{value.slice(0, 12) || "–"}</span></Badge>;
  return <>
    {urls.length === 1 && <Empty>This configuration lists no other nodes: write their addresses to <code>control: nodes</code>.</Empty>}
    {withoutToken.length > 0 && <Card title="Other nodes">
      <p>The control token is sent to this node only. To see the others, enter their read-only token.</p>
      <TokenFor url={OTHERS} label="their token" done={() => again(n => n + 1)} />
    </Card>}
    <div class="nodes">{urls.map(url => {
      const node = nodes[url];
      const value = node?.value;
      return (
        <Card key={url} title={<a href={`${url}/#/services`}>{url}</a>} note={url === location.origin ? "this node" : ""}>
          {!node ? <Empty>{withoutToken.includes(url) ? "This page has no token for it." : "Asking…"}</Empty> : <>
            {node.error ? <p><Badge kind="bad">unreachable</Badge> for {span((Date.now() - (node.since ?? Date.now())) / 1000)}: <Prose text={node.error} />. <a href={url} target="_blank" rel="noreferrer">Open it</a> to see what the browser says.</p> : <p><Badge kind="good">answers</Badge></p>}
            {node.refused && <TokenFor url={url} label="its token" done={() => again(n => n + 1)} />}
            {value && <dl class={`facts ${node.error ? "stale" : ""}`}>
              <dt>version</dt><dd>{flag(value.version, version)}</dd>
              <dt>ring as configured</dt><dd>{flag(value.configured, ring)}</dd>
              <dt>ring now</dt><dd>{flag(value.effective, effective)}</dd>
              <dt>configuration</dt><dd>{flag(value.configuration, configuration)}</dd>
              <dt>services</dt><dd>{count(value.services)}</dd>
              <dt>flows</dt><dd>{count(value.flows)}</dd>
              <dt>down</dt><dd><Down all={value.down} /></dd>
            </dl>}
          </>}
        </Card>
      );
    })}</div>
  </>;
}

const Down = ({ all }: { all: string[] }) =>
  all.length === 0 ? <>none</> : <Badge kind="bad">{all.slice(0, 5).join(", ")}{all.length > 5 ? ` and ${all.length - 5} more` : ""}</Badge>;

function mostCommon(values: string[]): string {
  const counts = new Map<string, number>();
  values.forEach(value => counts.set(value, (counts.get(value) ?? 0) + 1));
  // With two nodes of different versions, both are red.
  const sorted = [...counts].sort((a, b) => b[1] - a[1]);
  return sorted.length > 1 && sorted[0][1] === sorted[1][1] ? "\u0000" : sorted[0]?.[0] ?? "";
}

function TokenFor({ url, label, done }: { url: string; label: string; done: () => void }) {
  const [text, setText] = useState(nodeToken(url) ?? "");
  return <form class="buttons" onSubmit={event => { event.preventDefault(); if (text.trim()) { setNodeToken(url, text); done(); } }}>
    <label>{label} <input type="password" autocomplete="off" value={text} onInput={event => setText((event.target as HTMLInputElement).value)} /></label>
    <button type="submit">Use</button>
  </form>;
}

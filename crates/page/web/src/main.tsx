// The page: the frame around the views, the token's form, and the state of the connection.

import { render } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { forgetTokens, setToken, takeToken, token } from "./api";
import { Explain } from "./explain";
import { Fleet } from "./fleet";
import { clock, count, span } from "./format";
import { Badge, Empty, Failure, Guard } from "./parts";
import { address, useRoute } from "./route";
import { Store, useStore } from "./store";
import { AppView, Configuration, Drops, Ports, Services } from "./views";

takeToken();
// An address with a token that is entered in an open tab changes only the fragment. This listener is the first
// one, so that no view reads the token as its route.
addEventListener("hashchange", () => { if (takeToken()) dispatchEvent(new Event("weir-token")); });
const theme = localStorage.getItem("weir-theme");
if (theme) document.documentElement.dataset.theme = theme;

const TITLES: Record<string, string> = { services: "Services", drops: "Drops", explain: "Explain", ports: "Ports and workers", fleet: "Fleet", configuration: "Configuration" };

/** The views that show more than the daemon's last state. */
const OWN = ["explain", "configuration", "fleet"];

const capital = (word: string) => word.charAt(0).toUpperCase() + word.slice(1);

function App() {
  const [session, begin] = useState(0);
  const store = useMemo(() => new Store(), [session]);
  const [asks, setAsks] = useState(!token());
  useStore(store);
  useEffect(() => { store.run(); return () => store.stop(); }, [store]);
  // A session begins with another token, and the views of the previous one are discarded.
  const renew = () => { setAsks(!token()); begin(n => n + 1); };
  useEffect(() => {
    addEventListener("weir-token", renew);
    return () => removeEventListener("weir-token", renew);
  }, []);
  const enter = (text: string) => { setToken(text); renew(); };
  if (asks || store.connection.state === "refused")
    return <TokenForm enter={enter} why={store.connection.state === "refused" ? "The daemon refuses this token: it is wrong, or the daemon now has a different one." : ""} />;
  return <Frame key={session} store={store} leave={() => { forgetTokens(); renew(); }} />;
}

function TokenForm({ enter, why }: { enter: (text: string) => void; why: string }) {
  const [text, setText] = useState("");
  return (
    <main class="plain">
      <h1><img src="/icon.svg" alt="" width="32" height="32" /> weir</h1>
      <form class="card" onSubmit={event => { event.preventDefault(); if (text.trim()) enter(text); }}>
        <label for="token">Token of this node</label>
        <input id="token" type="password" autocomplete="off" value={text} onInput={event => setText((event.target as HTMLInputElement).value)} />
        {why && <Failure>{why}</Failure>}
        <div class="buttons"><button type="submit" class="main">Open</button></div>
        <p class="note"><code>weir ui --token</code> on the node prints an address that has it. The token stays in this tab, and is forgotten when you close it.</p>
      </form>
    </main>
  );
}

function Frame({ store, leave }: { store: Store; leave: () => void }) {
  const [route] = useRoute();
  const kinds: string[] = store.sections.kinds ?? [];
  const view = route.view || "services";
  const apps = kinds.includes(view);
  useEffect(() => { store.want(apps); }, [apps]);
  const views = ["services", "drops", "explain", "ports", ...kinds, "configuration", "fleet"];
  const dropping = sumRates(store) > 0;
  const { sections, connection } = store;
  useEffect(() => { document.title = `${TITLES[view] ?? capital(view)} · weir ${store.about?.name ?? ""}`; }, [view, store.about]);
  return <>
    <a class="skip" href="#content" onClick={event => { event.preventDefault(); document.getElementById("content")!.focus(); }}>To the content</a>
    <header class="top">
      <a class="brand" href={address("services")}><img src="/icon.svg" alt="" width="24" height="24" /><b>weir</b></a>
      <span class="where">{store.about?.name}</span>
      <span class="spread" />
      <span class="note wide-only">{store.about?.version && `weir ${store.about.version}`}{sections.uptime_s !== undefined && ` · up ${span(sections.uptime_s)}`}{sections.generation !== undefined && ` · generation ${count(sections.generation)}`}</span>
      {sections.draining_s !== undefined && sections.draining_s !== null && <Badge kind="warn">draining for {span(sections.draining_s)}</Badge>}
      {store.about && <Badge kind="plain">{store.can("control") ? "control" : "read-only"}</Badge>}
      <span id="connection" role="status">{connection.state === "live" ? <Badge kind="good">live</Badge> : connection.state === "lost" ? <Badge kind="bad">offline</Badge> :
        connection.state === "late" ? <Badge kind="bad">stalled</Badge> : <Badge kind="warn">connecting</Badge>}</span>
      <button type="button" onClick={toggle} aria-label="Dark or light" title="Dark or light">◐</button>
      <button type="button" onClick={leave}>Leave</button>
    </header>
    <nav aria-label="views"><ul>{views.map(one => (
      <li><a href={address(one)} aria-current={one === view ? "page" : undefined}>{TITLES[one] ?? capital(one)}{one === "drops" && dropping ? <span class="dot" aria-label="frames are being dropped" /> : ""}</a></li>))}</ul></nav>
    <main id="content" tabIndex={-1}>
      {connection.state === "lost" && <Failure>No connection since {clock(connection.since)}<Elapsed since={connection.since} />: {connection.why}. The page reconnects by itself{store.at ? `; it shows the state of ${clock(store.at)}` : ""}.</Failure>}
      {connection.state === "late" && <Failure>No new state since {clock(connection.since)}<Elapsed since={connection.since} />: the daemon or a worker is stuck, or the network is down. The page shows the last state.</Failure>}
      {connection.state === "live" && sections.health && sections.health !== "ok" && <Failure>{capital(sections.health)}: the states of apps and back ends may be old.</Failure>}
      {store.isOld() && <p class="notice" role="status">This page belongs to the previous daemon. <button type="button" onClick={() => location.reload()}>Reload</button></p>}
      <h1>{TITLES[view] ?? capital(view)}</h1>
      <Guard key={view}>
        {!store.at && !OWN.includes(view) ? <Empty>Waiting for the first state…</Empty> :
          view === "services" ? <Services store={store} /> : view === "drops" ? <Drops store={store} /> : view === "explain" ? <Explain store={store} /> :
          view === "ports" ? <Ports store={store} /> : view === "configuration" ? <Configuration store={store} /> : view === "fleet" ? <Fleet store={store} /> :
          apps ? <AppView store={store} kind={view} /> : <Failure>There is no view named {view}.</Failure>}
      </Guard>
    </main>
  </>;
}

/** How long something has lasted. It is hidden from screen readers, which would read an alert again every second. */
function Elapsed({ since }: { since: number }) {
  const [, tick] = useState(0);
  useEffect(() => { const timer = setInterval(() => tick(n => n + 1), 1000); return () => clearInterval(timer); }, []);
  return <span aria-hidden="true"> ({span((Date.now() - since) / 1000)})</span>;
}

function sumRates(store: Store): number {
  const before = new Map<string, number>((store.before.drops ?? []).map((one: { reason: string; frames: number }) => [one.reason, one.frames]));
  return (store.sections.drops ?? []).reduce((sum: number, one: { reason: string; frames: number }) =>
    sum + (one.reason === "policy" || one.reason === "miss" ? 0 : store.rate(one.frames, before.get(one.reason) ?? one.frames) ?? 0), 0);
}

function toggle() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("weir-theme", root.dataset.theme);
  dispatchEvent(new Event("weir-theme"));
}

render(<App />, document.getElementById("app")!);

// Bundles the page and compresses it. Writes ../built/, with a hash of everything the result depends on and one
// of the result, which a test compares with the sources and the built files.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { gzipSync } from "node:zlib";

const out = new URL("../built/", import.meta.url).pathname;
const here = new URL(".", import.meta.url).pathname;

const bundle = async (entry, options = {}) => {
  const built = await build({
    absWorkingDir: here, entryPoints: [entry], bundle: true, minify: true, write: false, format: "esm",
    target: ["es2022"], jsx: "automatic", jsxImportSource: "preact", legalComments: "none", ...options,
  });
  return built.outputFiles[0].contents;
};

const files = {
  "index.html": readFileSync(`${here}index.html`),
  "icon.svg": readFileSync(`${here}icon.svg`),
  "app.js": await bundle("src/main.tsx"),
  "app.css": await bundle("src/style.css"),
};

const sources = [
  "build.mjs", "icon.svg", "index.html", "package-lock.json", "package.json", "tsconfig.json",
  ...readdirSync(`${here}src`).map(name => `src/${name}`),
].sort();
const hashOf = (names, read) => {
  const hash = createHash("sha256");
  for (const name of names) {
    const content = read(name);
    hash.update(`${name}\n${content.length}\n`);
    hash.update(content);
  }
  return hash.digest("hex");
};

mkdirSync(out, { recursive: true });
let total = 0;
const built = {};
for (const [name, content] of Object.entries(files)) {
  const packed = gzipSync(content, { level: 9 });
  packed[9] = 255; // The system that compressed it: unknown, so that the result is the same everywhere.
  total += packed.length;
  built[`${name}.gz`] = packed;
  writeFileSync(`${out}${name}.gz`, packed);
  console.log(`${name}: ${content.length} bytes, ${packed.length} compressed`);
}
const ofSources = hashOf(sources, name => readFileSync(here + name));
const ofBuilt = hashOf(Object.keys(built).sort(), name => built[name]);
writeFileSync(`${out}sources.sha256`, `sources ${ofSources}\nbuilt ${ofBuilt}\n`);
console.log(`total: ${total} bytes compressed`);

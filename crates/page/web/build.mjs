// Bundles the page and compresses it. Writes ../built/, with a hash of everything the result depends on, which
// a test compares with the sources.
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
const hash = createHash("sha256");
for (const name of sources) {
  const text = readFileSync(here + name);
  hash.update(`${name}\n${text.length}\n`);
  hash.update(text);
}

mkdirSync(out, { recursive: true });
let total = 0;
for (const [name, content] of Object.entries(files)) {
  const packed = gzipSync(content, { level: 9 });
  packed[9] = 255; // The system that compressed it: unknown, so that the result is the same everywhere.
  total += packed.length;
  writeFileSync(`${out}${name}.gz`, packed);
  console.log(`${name}: ${content.length} bytes, ${packed.length} compressed`);
}
writeFileSync(`${out}sources.sha256`, `${hash.digest("hex")}\n`);
console.log(`total: ${total} bytes compressed`);

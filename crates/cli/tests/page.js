// Opens a page of `weir measure --html` in a DOM, does what a person would do, and prints what was there.
"use strict";
const fs = require("fs");
const { JSDOM, VirtualConsole } = require("jsdom");

const page = fs.readFileSync(process.argv[2], "utf8");
const errors = [];
const virtualConsole = new VirtualConsole();
virtualConsole.on("jsdomError", error => errors.push(String(error)));
const { window } = new JSDOM(page, { runScripts: "dangerously", virtualConsole });
const { document } = window;

const texts = (selector, within = document) => [...within.querySelectorAll(selector)].map(e => e.textContent);
const keys = () => texts("#table tbody tr td:first-child");
const press = column => {
  const button = [...document.querySelectorAll("#table th button")].find(b => b.textContent === column);
  button.click();
  return keys();
};
const filter = words => {
  document.getElementById("filter").value = words;
  document.getElementById("filter").dispatchEvent(new window.Event("input"));
  return { keys: keys(), about: document.getElementById("about").textContent };
};

const seen = {
  title: document.title,
  heading: document.querySelector("h1").textContent,
  tiles: texts(".tile"),
  notes: texts("#notes p"),
  plots: [...document.querySelectorAll("#plots svg")].map(svg => svg.getAttribute("aria-label")),
  paths: [...document.querySelectorAll("path")].map(path => path.getAttribute("d")),
  columns: texts("#table th"),
  first: texts("#table tbody tr:first-child td"),
  intervals: texts("#intervals tbody tr").length,
  lists: texts("#lists h2"),
  by_packets: keys(),
  by_packets_again: press("packets"),
  by_flow: press("flow"),
  by_bytes: press("bytes"),
  sorted: document.querySelector("#table th button[aria-sort]").textContent,
  udp: filter("UDP 10.0.0.2"),
  nothing: filter("udp tcp"),
  all: filter(" "),
  intruders: document.querySelectorAll("img, b.intruder").length,
  errors,
};
console.log(JSON.stringify(seen));

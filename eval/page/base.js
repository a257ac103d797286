"use strict";
/* Shared by all scripts of the page: elements, text made visible, numbers, theme, section links.
   Data never becomes markup: everything reaches the page through textContent or attributes. */

const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const INVISIBLE =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]/u;
const FAULT_PLACE = new Map(DATA.faults.map((fault, place) => [fault.name, place]));
const SYSTEM_PLACE = new Map(DATA.systems.map((system, place) => [system, place]));

function element(tag, attributes, ...children) {
  const node = document.createElement(tag);
  fill(node, attributes, children);
  return node;
}

function drawing(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  fill(node, attributes, children);
  return node;
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
}

/* Text with control characters, marks of direction and lone surrogates shown by number. */
function shown(text) {
  const parts = [];
  let plain = "";
  for (const character of text) {
    if (INVISIBLE.test(character)) {
      if (plain) parts.push(plain);
      plain = "";
      parts.push(element("span", { class: "control" }, codePoint(character)));
    } else {
      plain += character;
    }
  }
  if (plain) parts.push(plain);
  return parts;
}

function codePoint(character) {
  return "U+" + character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
}

function shownText(text) {
  return Array.from(text, (character) => (INVISIBLE.test(character) ? `⟨${codePoint(character)}⟩` : character)).join(
    "",
  );
}

function count(number) {
  return number.toLocaleString("en");
}

function short(number) {
  if (Math.abs(number) >= 1000) return Math.round(number).toLocaleString("en");
  return Number.isInteger(number) ? String(number) : number.toPrecision(3);
}

function systemName(system) {
  const place = SYSTEM_PLACE.has(system) ? SYSTEM_PLACE.get(system) % 10 : 0;
  return element("span", { class: "system" }, element("span", { class: `key key-${place}` }), shown(system));
}

function faultPill(fault) {
  if (fault === null) return element("span", { class: "pill" }, "no reference");
  return element("span", { class: "fault" }, element("span", { class: `dot fault-${FAULT_PLACE.get(fault)}` }), fault);
}

/* Theme: auto follows the system; the choice is kept where the browser lets a file keep anything. */
const THEMES = ["auto", "light", "dark"];
const themeListeners = [];

function startTheme() {
  const button = document.getElementById("theme");
  let theme = "auto";
  try {
    theme = THEMES.includes(localStorage.getItem("plansmith-theme")) ? localStorage.getItem("plansmith-theme") : "auto";
  } catch {
    /* storage is closed to this page: the choice lasts until it is closed */
  }
  const apply = () => {
    if (theme === "auto") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.setAttribute("data-theme", theme);
    button.textContent = `Theme: ${theme}`;
    themeListeners.forEach((listener) => listener());
  };
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    try {
      localStorage.setItem("plansmith-theme", theme);
    } catch {
      /* as above */
    }
    apply();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme === "auto" && apply());
  apply();
}

/* The address keeps the filter, so links to sections move without touching it. */
function startSections() {
  for (const link of document.querySelectorAll('a[href^="#"]')) {
    link.addEventListener("click", (event) => {
      const target = document.getElementById(link.getAttribute("href").slice(1));
      if (!target) return;
      event.preventDefault();
      target.scrollIntoView();
      target.focus({ preventScroll: true });
    });
  }
}

/* A narrow window starts with the first part only. */
function startParts() {
  if (!matchMedia("(max-width: 700px)").matches) return;
  document.querySelectorAll("details.part").forEach((part, place) => (part.open = place === 0));
}

startTheme();
startSections();
startParts();

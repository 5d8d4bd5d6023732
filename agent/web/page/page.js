// Renews the page every few seconds. What the reader opened, focused, scrolled or selected stays.
//
// The page is complete without this script. It asks for the same page again and changes only what
// differs, element by element: an element that stays is never replaced. It keeps no connection
// open between two requests, and it asks for nothing while the page is hidden.
"use strict";
(() => {
  const PERIOD_MS = 3000;
  const LONGEST_WAIT_MS = 30000;
  const ANSWER_MS = 10000;
  const OWN = new Set(["live", "pause"]); // elements that this script alone changes
  const live = document.getElementById("live");
  const button = document.getElementById("pause");
  if (!live || !button) return; // a page that does not renew itself
  const version = document.documentElement.dataset.version;
  let wait = PERIOD_MS;
  let timer = 0;
  let paused = false;
  let answered = new Date();

  const isElement = (node) => node.nodeType === Node.ELEMENT_NODE;
  const idOf = (node) => (isElement(node) ? node.id : "");
  const isOwn = (node) => OWN.has(idOf(node)) || node.nodeName === "NOSCRIPT";
  const isSelecting = () => !document.getSelection().isCollapsed;

  function setText(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  function renewAttributes(old, fresh) {
    for (const { name, value } of [...fresh.attributes]) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    for (const { name } of [...old.attributes]) {
      const isOpened = name === "open" && old.nodeName === "DETAILS"; // by the reader
      if (!isOpened && !fresh.hasAttribute(name)) old.removeAttribute(name);
    }
  }

  function isSame(old, fresh) {
    return old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName
      && idOf(old) === idOf(fresh);
  }

  function renew(old, fresh) {
    if (!isElement(old)) {
      if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
      return;
    }
    if (isOwn(old) || old.isEqualNode(fresh)) return;
    renewAttributes(old, fresh);
    const byId = new Map([...old.children].filter((one) => one.id).map((one) => [one.id, one]));
    const remaining = new Set(fresh.children.length ? [...fresh.children].map(idOf) : []);
    let place = old.firstChild;
    for (const next of [...fresh.childNodes]) {
      // an element that will not be there any more must not be taken for another one
      while (place && idOf(place) && !remaining.has(idOf(place))) {
        const gone = place;
        place = place.nextSibling;
        gone.remove();
      }
      let match = byId.get(idOf(next)) || (place && isSame(place, next) ? place : null);
      if (match && !isSame(match, next)) match = null;
      if (match === null) {
        old.insertBefore(document.importNode(next, true), place);
      } else if (match === place) {
        place = place.nextSibling;
        renew(match, next);
      } else {
        old.insertBefore(match, place);
        renew(match, next);
      }
    }
    while (place) {
      const gone = place;
      place = place.nextSibling;
      gone.remove();
    }
  }

  function renewPage(fresh) {
    const focused = document.activeElement;
    renew(document.body, fresh.body);
    document.title = fresh.title;
    const icon = document.getElementById("icon");
    const freshIcon = fresh.getElementById("icon");
    if (icon && freshIcon && icon.href !== freshIcon.href) icon.href = freshIcon.href;
    // an element that moved to another place has lost the focus
    if (focused && focused !== document.activeElement && focused.isConnected) {
      focused.focus({ preventScroll: true });
    }
  }

  async function ask() {
    const answer = await fetch(location.pathname, {
      cache: "no-store",
      signal: AbortSignal.timeout(ANSWER_MS),
    });
    if (!answer.ok) throw new Error(`${answer.status}`);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const freshVersion = fresh.documentElement.dataset.version;
    if (!freshVersion) throw new Error("another page");
    if (freshVersion !== version) location.reload(); // another agent, with another script
    if (!isSelecting() && !paused) renewPage(fresh);
  }

  function showState(lost) {
    document.body.classList.toggle("lost", lost);
    setText(button, paused ? "Continue updates" : "Pause updates");
    if (lost) setText(live, `no answer since ${answered.toLocaleTimeString()}, trying again`);
    else setText(live, paused ? "updates are paused" : "updates by itself");
  }

  async function turn() {
    timer = 0;
    if (paused || document.hidden) return;
    try {
      if (!isSelecting()) await ask();
      answered = new Date();
      wait = PERIOD_MS;
      showState(false);
    } catch {
      wait = Math.min(2 * wait, LONGEST_WAIT_MS);
      showState(true);
    }
    plan(wait);
  }

  function plan(delay) {
    if (timer) clearTimeout(timer);
    timer = paused || document.hidden ? 0 : setTimeout(turn, delay);
  }

  button.addEventListener("click", () => {
    paused = !paused;
    showState(false);
    plan(0);
  });
  document.addEventListener("visibilitychange", () => plan(0));
  button.hidden = false;
  showState(false);
  plan(PERIOD_MS);
})();

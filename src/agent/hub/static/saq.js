// Stands between snabbdom and SAQ's own page, which is loaded after it and stays as SAQ ships it: links that ignore where
// the page is mounted, keys with characters that an address gives a meaning, the token that a change needs, and what the
// hub answers to a button.
"use strict";

const root_path = document.currentScript.dataset.root; // SAQ's page reads it

{
  const { token } = document.currentScript.dataset;
  const IN_KEY = /^(.*?\/queues\/[^/]+\/jobs\/)(.+)$/s;

  const mended = (href) => {
    const inside = href.startsWith("/queues/") ? root_path + href : href;
    return inside.replace(IN_KEY, (_, start, key) => start + encodeURIComponent(key.toWellFormed()));
  };

  const readable = (text) => {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  };

  const build = snabbdom.h;
  snabbdom.h = (selector, ...rest) => {
    const props = rest[0]?.props;
    if (selector === "a" && typeof props?.href === "string") props.href = mended(props.href);
    if (selector === "h2" && typeof rest[0] === "string") rest[0] = readable(rest[0]); // a key, out of the address
    return build(selector, ...rest);
  };

  const say = (text) => {
    const notice = document.getElementById("notice");
    notice.textContent = text;
    notice.hidden = !text;
  };

  const ask = window.fetch;
  window.fetch = async (address, options = {}) => {
    const changes = (options.method ?? "get") !== "get";
    const headers = changes ? { ...options.headers, "X-CSRF-Token": token } : options.headers;
    try {
      const response = await ask(address, { ...options, headers, signal: AbortSignal.timeout(20000) });
      if (response.status === 401) location.assign(`/login?next=${encodeURIComponent(location.pathname)}`);
      if (changes) {
        const answer = await response.clone().json();
        say(answer.error ?? answer.done);
      }
      return response;
    } catch (error) {
      if (changes) say(`The hub did not answer as it should (${error.message}).`);
      throw error;
    }
  };

  // An address written by hand may hold a key as it is.
  const [, start, key] = location.pathname.match(IN_KEY) ?? [];
  if (key?.includes("/")) history.replaceState(null, "", start + encodeURIComponent(readable(key)));
}

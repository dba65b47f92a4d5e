// The explorer on the front page takes the scheme that the reader chose for the site.
(() => {
  const follow = () => {
    const dark = document.body.getAttribute("data-md-color-scheme") === "slate";
    for (const frame of document.querySelectorAll("iframe.explorer")) {
      let choice = null;
      try {
        choice = frame.contentDocument?.querySelector("[data-choice=theme]");
      } catch { /* opened as a file: a frame is then another site, and keeps the system's scheme */ }
      if (!choice) continue;
      choice.value = dark ? "dark" : "light";
      choice.dispatchEvent(new Event("change", { bubbles: true }));
    }
  };
  for (const frame of document.querySelectorAll("iframe.explorer")) frame.addEventListener("load", follow);
  new MutationObserver(follow).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
  follow();
})();

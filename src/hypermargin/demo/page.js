// The language and the theme: the reader's own, until one is chosen.
(() => {
  "use strict";
  const root = document.documentElement;
  const titles = JSON.parse(document.getElementById("titles").textContent);
  const lang = document.getElementById("lang");
  const theme = document.getElementById("theme");
  const speak = () => {
    root.lang = lang.value === "zh" ? "zh-CN" : "en";
    document.title = titles[lang.value];
    for (const option of theme.options) option.textContent = option.dataset[lang.value];
  };
  lang.value = (navigator.language || "en").startsWith("zh") ? "zh" : "en";
  lang.addEventListener("change", speak);
  theme.addEventListener("change", () => { root.dataset.theme = theme.value; });
  speak();
})();

// Light or dark as this person chose it; before the page is drawn, so that it does not flash.
{
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
// What only those need who run no script is hidden from the others.
document.documentElement.classList.add("js");

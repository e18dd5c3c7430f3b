"""How the page looks, and the few lines of script that read the curves where one points."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .colors import STAGE_STYLES
from .curve_chart import policy_css

if TYPE_CHECKING:
    from .curve import HitRateCurve

__all__ = ["SCRIPT", "style_sheet"]

_COMMON = """
:root{--ink:#1c2430;--soft:#566072;--ground:#fff;--panel:#f4f6f9;--rule:#d9dee6;--hit:#0072b2;--miss:#c9d4e0;--mark:#0a7a4b}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.2rem 1rem 4rem;max-width:62rem;background:var(--ground);color:var(--ink);
 font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
h1{font-size:1.6rem;line-height:1.2;margin:.4rem 0 .2rem}
h2{font-size:1.2rem;margin:2.6rem 0 .5rem;padding-top:.9rem;border-top:1px solid var(--rule)}
p{margin:.5rem 0;max-width:46rem}
.soft,figcaption,caption{color:var(--soft);font-size:.92rem}
.answer{background:var(--panel);border-left:5px solid var(--mark);border-radius:6px;padding:.7rem 1.1rem;margin:1rem 0}
.answer p:first-child{font-size:1.15rem;font-weight:600}
pre{background:var(--panel);border:1px solid var(--rule);border-radius:6px;padding:.7rem .9rem;margin:.5rem 0;
 overflow-x:auto;font:.88rem/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;user-select:all}
code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.92em}
.code{position:relative}
.code button{position:absolute;top:.45rem;right:.45rem;font:inherit;font-size:.8rem;padding:.15rem .6rem;cursor:pointer;
 color:var(--ink);background:var(--ground);border:1px solid var(--rule);border-radius:5px}
figure{margin:1rem 0}
.side{display:flex;flex-wrap:wrap;gap:.5rem 1.6rem;align-items:center}
.side>div:first-child{flex:2 1 26rem;min-width:0}.side>div:last-child{flex:1 1 14rem}
svg.chart{width:100%;height:auto;max-width:44rem;display:block;touch-action:pan-y}
svg text{fill:var(--ink);font-size:13px;font-family:system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif}
.grid{stroke:var(--rule);stroke-width:1}.tick,.pointer{stroke:var(--soft)}.pointer{stroke-dasharray:2 3}
.line{fill:none;stroke-linejoin:round;stroke-width:1.8}.line.chosen{stroke-width:3.4}
.recommended{fill:var(--mark);stroke:var(--ground);stroke-width:2}
.strong{font-weight:600}.halo{paint-order:stroke;stroke:var(--ground);stroke-width:4px;stroke-linejoin:round}
.key{list-style:none;margin:.3rem 0;padding:0}
.key li{display:flex;gap:.6rem;align-items:center;padding:.12rem 0}
.key .name{flex:1}.key .best .name{font-weight:700}.key .value{font-variant-numeric:tabular-nums}
.key-budget{font-size:.92rem;color:var(--soft);margin:0}
svg.swatch{width:34px;height:12px;flex:none}
.stages{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;list-style:none;padding:0;margin:.4rem 0;font-size:.92rem}
.stages li{display:flex;gap:.4rem;align-items:center}.stages svg{width:14px;height:14px}
.scroll{overflow-x:auto}
svg.timeline{width:100%;min-width:44rem;height:auto;display:block}
.lane{fill:var(--panel)}.span{stroke:var(--ground);stroke-width:.6}.span:hover{stroke:var(--ink);stroke-width:1.5}
.on-span{fill:#fff!important;font-size:11px!important;pointer-events:none}
table{border-collapse:collapse;font-size:.92rem;width:100%}
th,td{padding:.28rem .6rem;text-align:right;border-bottom:1px solid var(--rule);font-variant-numeric:tabular-nums;
 white-space:nowrap}
th:first-child,td:first-child{text-align:left;padding-left:0}
thead th{color:var(--soft);font-weight:600;border-bottom:2px solid var(--rule);vertical-align:bottom}
caption{text-align:left;padding:.2rem 0}
tbody th{font-weight:400}
td.best{font-weight:700;color:var(--mark)}tr.chosen>*{background:var(--panel)}
.bar{width:45%;padding-right:0;text-align:left!important}svg.bar{width:100%;height:1rem;display:block}
.hit{fill:var(--hit)}.miss{fill:var(--miss)}
dl{margin:.5rem 0}dt{font-weight:600;margin-top:.6rem}dd{margin:0 0 0 1.1rem;max-width:46rem}
dl.facts{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1.2rem}dl.facts>*{margin:0}
dl.facts dt{font-weight:400;color:var(--soft)}dl.facts dd{overflow-wrap:anywhere}
details{margin:.6rem 0}summary{cursor:pointer}
@media(max-width:36rem){body{padding:.6rem .8rem 3rem}.bar{width:32%}th,td{padding:.28rem .35rem}
 .hops th,.times th,.choices th{white-space:normal}svg.chart text{font-size:15px}
 .choices{font-size:.84rem}.choices th,.choices td{padding:.28rem .18rem}
 pre{white-space:pre-wrap;overflow-wrap:anywhere}
 dl.facts{grid-template-columns:1fr}dl.facts dd{margin-bottom:.4rem}.code button{position:static;margin-top:.2rem}}
@media print{.code button{display:none}}
"""

_DARK = """
:root{--ink:#e8ecf2;--soft:#a3adbc;--ground:#14181f;--panel:#1e242e;--rule:#333c4a;--hit:#4aa3df;--miss:#3a4655;
 --mark:#3ccf8e}
.on-span{fill:#10141a!important}
"""

SCRIPT = """
(function(){
 var chart=document.getElementById("curves"),line=document.getElementById("pointer"),
  words=document.getElementById("budget"),points=chart?JSON.parse(chart.dataset.points):[];
 function show(event){
  var box=chart.getBoundingClientRect(),x=(event.clientX-box.left)/box.width*chart.viewBox.baseVal.width,near=points[0];
  points.forEach(function(p){if(Math.abs(p.x-x)<Math.abs(near.x-x))near=p});
  line.setAttribute("x1",near.x);line.setAttribute("x2",near.x);words.textContent=near.words;
  document.querySelectorAll(".key .value").forEach(function(v){v.textContent=near.rates[v.dataset.policy]});
 }
 if(points.length){chart.addEventListener("pointermove",show);chart.addEventListener("pointerdown",show)}
 document.querySelectorAll(".code button").forEach(function(button){
  button.addEventListener("click",function(){
   var code=button.parentNode.querySelector("pre"),range=document.createRange();
   range.selectNodeContents(code);getSelection().removeAllRanges();getSelection().addRange(range);
   var done=function(){button.textContent="copied"};
   if(navigator.clipboard)navigator.clipboard.writeText(code.textContent).then(done,function(){});
   else if(document.execCommand("copy"))done();
  })})
})();
"""
"""Moves the chart's line and the key's numbers to the budget pointed at; copies code. The page can be read without."""


def style_sheet(curve: HitRateCurve) -> str:
    """The whole style sheet; readers who prefer a dark ground get one."""
    policies, dark_policies = policy_css(curve)
    stages = "".join(f".stage-{name}{{fill:{style.light}}}" for name, style in STAGE_STYLES.items())
    dark_stages = "".join(f".stage-{name}{{fill:{style.dark}}}" for name, style in STAGE_STYLES.items())
    dark = f"@media(prefers-color-scheme:dark){{{_DARK}{dark_policies}{dark_stages}}}"
    return f"{_COMMON}{policies}{stages}\n{dark}"

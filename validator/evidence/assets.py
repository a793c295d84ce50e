"""Style and script of the page. Nothing is loaded from anywhere; the script only sorts and filters the table, the page is
whole without it."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1c2128;--soft:#5b6470;--line:#d9dee4;--card:#f6f8fa;--good:#136c3a;
--goodbg:#e3f5ea;--bad:#b3261e;--badbg:#fdeceb;--open:#8a5a00;--openbg:#fdf3dc;
--c0:#0b6bcb;--c1:#d9480f;--c2:#2b8a3e;--c3:#9c36b5;--c4:#c2255c;--c5:#0c8599;--c6:#846358;--c7:#5f3dc4;--muted:#aeb6c0}
@media (prefers-color-scheme:dark){:root{--bg:#11151a;--fg:#e4e8ed;--soft:#9aa4b0;--line:#2e353e;--card:#1a2027;
--good:#6fd69a;--goodbg:#12301f;--bad:#ff8a80;--badbg:#3a1715;--open:#f0c063;--openbg:#34280c;
--c0:#5aa9f8;--c1:#ff9257;--c2:#6bcf83;--c3:#d78ae8;--c4:#f783ac;--c5:#4fd0e0;--c6:#c9a394;--c7:#a990ff;--muted:#5a6470}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1440px;margin:0 auto;padding:28px 24px 60px}
h1{font-size:15px;font-weight:600;color:var(--soft);margin:0 0 14px}
h2{font-size:18px;margin:38px 0 12px}
h3{font-size:14px;margin:0 0 8px}
p{margin:0 0 10px}
.soft,.none{color:var(--soft)}
.verdict{border:1px solid;border-left-width:8px;border-radius:8px;padding:18px 22px}
.verdict strong{display:block;font-size:28px;line-height:1.2;margin-bottom:6px}
.verdict p{margin:0;color:var(--fg);overflow-wrap:anywhere}
.EQUAL{--tone:var(--good);--tonebg:var(--goodbg)}.DIFFERENT{--tone:var(--bad);--tonebg:var(--badbg)}
.STARTS_LATE{--tone:var(--bad);--tonebg:var(--badbg)}.EQUAL_FROM{--tone:var(--good);--tonebg:var(--goodbg)}
.NOT_PROVED,.CLEANED{--tone:var(--open);--tonebg:var(--openbg)}
.verdict{color:var(--tone);background:var(--tonebg);border-color:var(--tone)}
.tag{display:inline-block;color:var(--tone);background:var(--tonebg);border-radius:4px;padding:1px 7px;font-size:12px;
font-weight:600;white-space:nowrap}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:12px;margin:16px 0 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px}
.tile b{display:block;font-size:21px;line-height:1.3;font-variant-numeric:tabular-nums}
.tile span{color:var(--soft);font-size:13px}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(460px,100%),1fr));gap:20px}
.card{border:1px solid var(--line);border-radius:8px;padding:14px 16px;min-width:0}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 16px;margin:0}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
svg{display:block;width:100%;height:auto}
svg text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--soft)}
svg text.phase{fill:var(--fg)}.end{text-anchor:end}.middle{text-anchor:middle}
.grid{stroke:var(--line);stroke-width:1}.mark{stroke:var(--soft);stroke-width:1;stroke-dasharray:2 3}
.bar{fill:var(--c0)}.line{fill:none;vector-effect:non-scaling-stroke;stroke-linejoin:round;stroke-linecap:round}
.aim{stroke:var(--fg);stroke-dasharray:6 4}.muted{stroke:var(--muted)}
.c0{stroke:var(--c0)}.c1{stroke:var(--c1)}.c2{stroke:var(--c2)}.c3{stroke:var(--c3)}.c4{stroke:var(--c4)}
.c5{stroke:var(--c5)}.c6{stroke:var(--c6)}.c7{stroke:var(--c7)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 16px;margin:8px 0 0;padding:0;font-size:13px}
.legend li{overflow-wrap:anywhere}
.legend i{display:inline-block;width:18px;height:0;border-top:3px solid;vertical-align:middle;margin-right:6px}
i.aim{border-top-style:dashed;border-color:var(--fg)}i.muted{border-color:var(--muted)}
i.c0{border-color:var(--c0)}i.c1{border-color:var(--c1)}i.c2{border-color:var(--c2)}i.c3{border-color:var(--c3)}
i.c4{border-color:var(--c4)}i.c5{border-color:var(--c5)}i.c6{border-color:var(--c6)}i.c7{border-color:var(--c7)}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:8px}
table{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}
th,td{padding:6px 8px;text-align:left;border-bottom:1px solid var(--line);vertical-align:top}
tbody tr:last-child td{border-bottom:0}
th{background:var(--card);font-weight:600;white-space:nowrap;position:sticky;top:0}
th button{all:unset;cursor:pointer}th button:focus-visible{outline:2px solid var(--c0)}
th[aria-sort=ascending] button:after{content:" \\2191"}th[aria-sort=descending] button:after{content:" \\2193"}
.n{text-align:right;white-space:nowrap}
.name{overflow-wrap:anywhere;min-width:110px;max-width:320px}
code{font:12px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
td code{white-space:nowrap}
td.d{line-height:1.35}td.d code{display:inline-block;width:16ch;white-space:normal;word-break:break-all}
.tail{white-space:nowrap}
.tools{display:none;gap:16px;align-items:center;margin:0 0 10px;flex-wrap:wrap}
.js .tools{display:flex}
input[type=search]{font:inherit;color:inherit;background:var(--bg);border:1px solid var(--line);border-radius:6px;
padding:5px 10px;width:280px}
.facts{margin:4px 0 0}
@media print{:root{--bg:#fff;--fg:#000;--soft:#444;--line:#bbb;--card:#f4f4f4;--good:#136c3a;--goodbg:#fff;--bad:#b3261e;
--badbg:#fff;--open:#8a5a00;--openbg:#fff;--c0:#0b6bcb;--c1:#d9480f;--c2:#2b8a3e;--c3:#9c36b5;--c4:#c2255c;--c5:#0c8599;
--c6:#846358;--c7:#5f3dc4;--muted:#aeb6c0}
body{font-size:10.5pt}main{max-width:none;padding:0}.js .tools{display:none}.scroll{overflow:visible;border:0}
table{font-size:7.5pt}th,td{padding:3px 5px}code{font-size:6.5pt}thead{display:table-header-group}
th{position:static}tr,.card,.verdict,.tile,svg{break-inside:avoid}h2{break-after:avoid}
.pair{grid-template-columns:1fr 1fr}}
"""

SCRIPT = """
(function(){
var root=document.documentElement,table=document.getElementById('replicas');
if(!table)return;root.className='js';
var body=table.tBodies[0],rows=Array.prototype.slice.call(body.rows),heads=table.tHead.rows[0].cells;
var find=document.getElementById('find'),only=document.getElementById('only'),count=document.getElementById('count');
function key(row,at){var cell=row.cells[at],v=cell.getAttribute('data-v');
return v===null?cell.textContent:v===''?-Infinity:Number(v)}
function sort(at,head){var down=head.getAttribute('aria-sort')==='ascending';
for(var i=0;i<heads.length;i++)heads[i].removeAttribute('aria-sort');
head.setAttribute('aria-sort',down?'descending':'ascending');
var keyed=rows.map(function(row,i){return[key(row,at),i,row]});
keyed.sort(function(a,b){var c=a[0]<b[0]?-1:a[0]>b[0]?1:0;return(down?-c:c)||a[1]-b[1]});
rows=keyed.map(function(k){return k[2]});
var all=document.createDocumentFragment();rows.forEach(function(row){all.appendChild(row)});body.appendChild(all)}
function filter(){var text=find.value.toLowerCase(),shown=0;rows.forEach(function(row){
var keep=(!text||row.cells[0].textContent.toLowerCase().indexOf(text)>=0)&&
(!only.checked||row.getAttribute('data-ok')!=='1');row.hidden=!keep;if(keep)shown++});
count.textContent=shown+' of '+rows.length+' rows'}
Array.prototype.forEach.call(heads,function(head,at){var button=document.createElement('button');
button.type='button';button.textContent=head.textContent;head.textContent='';head.appendChild(button);
button.addEventListener('click',function(){sort(at,head)})});
find.addEventListener('input',filter);only.addEventListener('change',filter);filter();
})();
"""

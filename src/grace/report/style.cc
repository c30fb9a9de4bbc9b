#include "grace/report/pictures.h"

namespace grace::report {

const char* const kStyle = R"css(
:root{color-scheme:light dark;--bg:#fff;--ink:#1c2430;--dim:#5d6877;--line:#dfe4ea;
--c0:#3566b8;--c1:#d9822b;--c2:#3a9d6e;--c3:#b8476b;--c4:#7a5cc0;--c5:#8a7440;--c6:#2f9fb0;--c7:#8795a6}
@media(prefers-color-scheme:dark){:root{--bg:#12161c;--ink:#e4e9f0;--dim:#95a1b2;--line:#2b333f;
--c0:#6d9bea;--c1:#eba45c;--c2:#63c797;--c3:#e07d9d;--c4:#a58bea;--c5:#c0a86b;--c6:#64c8d8;--c7:#93a1b3}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.2rem;max-width:58rem;background:var(--bg);color:var(--ink);
font:16px/1.5 system-ui,sans-serif;-webkit-text-size-adjust:100%}
h1{font-size:1.6rem;line-height:1.2;margin:.4rem 0}h2{font-size:1.1rem;margin:2rem 0 .2rem}
.summary{white-space:pre-line}.note{color:var(--dim);margin:.1rem 0 .5rem;font-size:.9rem}
.wide{overflow-x:auto}.wide svg{display:block;width:100%;min-width:36rem;height:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.92rem}
th,td{padding:.3rem .7rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left;padding-left:0}th{color:var(--dim);font-weight:600}
text{font-size:11px;fill:var(--dim)}.grid{stroke:var(--line);fill:none}
.c0{fill:var(--c0)}.c1{fill:var(--c1)}.c2{fill:var(--c2)}.c3{fill:var(--c3)}
.c4{fill:var(--c4)}.c5{fill:var(--c5)}.c6{fill:var(--c6)}.c7{fill:var(--c7)}
rect:hover{opacity:.75}
.legend{margin:.2rem 0;font-size:.85rem;color:var(--dim)}.legend span{margin-right:1rem;white-space:nowrap}
.legend i{display:inline-block;width:.75em;height:.75em;border-radius:2px;margin-right:.35em}
.b0{background:var(--c0)}.b1{background:var(--c1)}.b2{background:var(--c2)}.b3{background:var(--c3)}
.b4{background:var(--c4)}.b5{background:var(--c5)}.b6{background:var(--c6)}.b7{background:var(--c7)}
figure{margin:.4rem 0}canvas{display:block;width:100%;max-width:44rem;touch-action:pan-y;border:1px solid var(--line)}
figcaption{color:var(--dim);font-size:.9rem;min-height:1.5em}
.slider{display:flex;gap:.8rem;align-items:center;margin:.3rem 0}.slider input{flex:0 1 22rem;min-width:8rem}
)css";

const char* const kScript = R"js(
const dark=matchMedia('(prefers-color-scheme: dark)');
const mix=(a,b,t)=>a.map((x,i)=>Math.round(x+(b[i]-x)*t));
function colour(t){
  const s=dark.matches?[[22,27,35],[40,92,160],[150,205,255]]:[[245,247,251],[110,160,220],[12,48,110]];
  return t<.5?mix(s[0],s[1],t*2):mix(s[1],s[2],t*2-1);
}
const show=v=>v===null?'\u2013':Math.abs(v)>=1000?Math.round(v).toLocaleString('en').replace(/,/g,'\u2009'):String(+v.toPrecision(3));
function heat(figure){
  const layers=JSON.parse(figure.querySelector('script').textContent);
  const canvas=figure.querySelector('canvas'),cap=figure.querySelector('figcaption');
  const slider=figure.querySelector('input'),out=figure.querySelector('output');
  let map;
  const label=(list,i)=>i<list.length?list[i]:String(i);
  function draw(){
    map=layers[slider?+slider.value:0];
    if(out)out.textContent=map.title;
    const values=map.v.filter(v=>v!==null),low=Math.min(0,...values),high=Math.max(0,...values),span=high-low||1;
    const wide=Math.max(1,Math.round(canvas.clientWidth*devicePixelRatio)),cell=wide/map.cols;
    const tall=Math.max(Math.round(18*devicePixelRatio),Math.min(cell,wide/Math.max(map.rows,8)));
    canvas.width=wide;canvas.height=Math.round(map.rows===map.cols&&map.rows>16?wide:tall*map.rows);
    canvas.style.height=canvas.height/devicePixelRatio+'px';
    const c=canvas.getContext('2d'),h=canvas.height/map.rows,gap=cell>6?1:0;
    c.textAlign='center';c.textBaseline='middle';c.font=Math.round(12*devicePixelRatio)+'px system-ui,sans-serif';
    map.v.forEach((v,i)=>{
      if(v===null)return;
      const x=i%map.cols,y=Math.floor(i/map.cols),t=Math.sqrt((v-low)/span);
      c.fillStyle='rgb('+colour(t)+')';c.fillRect(x*cell,y*h,cell-gap,h-gap);
      if(cell>48*devicePixelRatio&&h>14*devicePixelRatio){
        c.fillStyle=dark.matches?(t>.75?'#0b0e13':'#e4e9f0'):(t>.5?'#fff':'#1c2430');
        c.fillText(show(v),(x+.5)*cell,(y+.5)*h);
      }
    });
    cap.textContent=map.note||(map.row+' down, '+map.col+' across; colour by the square root, '+show(low)+' to '+show(high));
  }
  function point(e){
    const box=canvas.getBoundingClientRect();
    const x=Math.floor((e.clientX-box.left)/box.width*map.cols),y=Math.floor((e.clientY-box.top)/box.height*map.rows);
    if(x<0||y<0||x>=map.cols||y>=map.rows)return;
    const text=map.row+' '+label(map.rl,y)+', '+map.col+' '+label(map.cl,x)+': '+show(map.v[y*map.cols+x]);
    canvas.title=text;cap.textContent=text;
  }
  canvas.addEventListener('pointermove',point);canvas.addEventListener('pointerdown',point);
  if(slider)slider.addEventListener('input',draw);
  dark.addEventListener('change',draw);addEventListener('resize',draw);draw();
}
document.querySelectorAll('.heat').forEach(heat);
)js";

}  // namespace grace::report

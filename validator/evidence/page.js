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

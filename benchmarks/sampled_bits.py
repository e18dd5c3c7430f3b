"""Hashes of batches of many settings."""
import hashlib, json, sys, itertools
import numpy as np, torch
from pagraph import Graph, CSC, NeighborSampler
from pagraph.sampling import *
try:
    from pagraph.sampling.excluded import ExcludedEdges
except ImportError:
    from pagraph.sampling.block_sampler import ExcludedEdges
from pagraph.seeds.keys import batch_key
from pagraph.seeds import *
import pagraph.seeds.keys as K

def flat(v, h):
    if isinstance(v, torch.Tensor):
        h.update(repr((str(v.dtype), tuple(v.shape))).encode()); h.update(v.contiguous().numpy().tobytes())
    elif isinstance(v, dict):
        for k in v: h.update(repr(k).encode()); flat(v[k], h)
    elif isinstance(v, (list, tuple)):
        for x in v: flat(x, h)
    elif type(v).__name__=='SampledEdges':
        flat([v.edge_index, v.edge_ids, v.hop_ends],h)
    elif hasattr(v, '__dataclass_fields__'):
        h.update(type(v).__name__.encode())
        for n in v.__dataclass_fields__: flat(getattr(v, n), h)
    else:
        h.update(repr(v).encode())
def digest(b):
    h = hashlib.blake2b(digest_size=8); flat(b, h); return h.hexdigest()

rng = np.random.default_rng(0)
def one(n, m, wide=False, hub=0):
    src = rng.integers(0, n, m); dst = (n*rng.random(m)**2).astype(int)
    if hub: dst[:hub]=0
    c = CSC.from_coo(src, dst, n)
    if wide: c = CSC(c.indptr.long(), c.indices.long(), n, None if c.edge_ids is None else c.edge_ids.long())
    g = Graph(c)
    w = rng.random(m)*(rng.random(m)>.2)
    g.set_field('p', torch.from_numpy(w.astype(np.float32)), edge_type=g.edge_types[0])
    g.set_field('m', torch.from_numpy(rng.random(m)>.5), edge_type=g.edge_types[0])
    g.set_field('t', torch.from_numpy(rng.integers(0,50,m)), edge_type=g.edge_types[0])
    g.set_field('vt', torch.from_numpy(rng.integers(0,50,n)), node_type=g.node_types[0])
    return g
ET=[("a","to","a"),("b","of","a"),("a","has","b"),("c","in","b"),("b","again","a"),("a","late","c")]
def typed(scale, mixed=None):
    sizes={"a":40*scale,"b":25*scale,"c":7*scale}
    csc={}
    for i,e in enumerate(ET):
        m=[300,200,100,50,0,30][i]*scale
        c=CSC.from_coo(rng.integers(0,sizes[e[0]],m),(sizes[e[2]]*rng.random(m)**2).astype(int),(sizes[e[0]],sizes[e[2]]))
        if mixed=='wide' or (mixed=='mixed' and i%2):
            c=CSC(c.indptr.long(),c.indices.long(),sizes[e[0]],None if c.edge_ids is None else c.edge_ids.long())
        csc[e]=c
    g=Graph(csc,sizes)
    for i,e in enumerate(ET):
        m=csc[e].num_edges
        if i!=2: g.set_field('p',torch.from_numpy((rng.random(m)*(rng.random(m)>.2)).astype(np.float32)),edge_type=e)
        if i in (0,3): g.set_field('t',torch.from_numpy(rng.integers(0,50,m)),edge_type=e)
    g.set_field('t',torch.from_numpy(rng.integers(0,50,sizes['a'])),node_type='a')
    return g
class MyN(NeighborSampler): pass
class Mine(NeighborSampler):
    def picker(self,*a): return super().picker(*a)
class MineS(SubgraphSampler):
    def picker(self,*a): return super().picker(*a)
class MineL(LaborSampler):
    def picker(self,*a): return super().picker(*a)
out={}
def run(name,f):
    try: r=digest(f())
    except Exception as e: r=f"{type(e).__name__}: {e}"[:200]
    out[name]=r
graphs={'small':one(50,600),'wide':one(60,500,True),'hub':one(300,5000,hub=900),'big':one(5000,80000),'none':one(10,0)}
tg={'t1':typed(1),'t20':typed(20),'twide':typed(2,'wide'),'tmixed':typed(3,'mixed')}
FAN=[[3],[5,2],[-1],[2,-1,3],[20,70]]
for gn,g in graphs.items():
    e=g.edge_types[0]; n=g.num_nodes
    for seeds_n in (0,1,7,40):
        s=torch.from_numpy(np.random.default_rng(seeds_n).integers(0,n,seeds_n))
        ex=ExcludedEdges(torch.from_numpy(np.random.default_rng(1).integers(0,max(1,g.csc.num_edges),min(g.csc.num_edges,200))).to(g.csc.indices.dtype))
        for dt in (None,torch.int32):
            for fan in FAN:
                kws=[{},{'replace':True},{'prob':'p'},{'prob':'m'},{'edge_dir':'out'},{'batch_dependency':4},{'prob':'p','replace':True},{'prob':'p','batch_dependency':3}]
                for kw in kws:
                    if kw.get('replace') and -1 in fan: continue
                    for cls in (NeighborSampler,MyN,Mine,SubgraphSampler,MineS):
                        key=K.batch_key(77,5,K.Ranks(0,1)) if 'batch_dependency' in kw else 9
                        run(f'{gn} {seeds_n} {dt} {fan} {kw} {cls.__name__}',lambda:cls(fan,**kw).sample(g,s,key,dtype=dt))
                        if cls in (NeighborSampler,Mine) and kw.get('edge_dir')!='out':
                            run(f'{gn} {seeds_n} {dt} {fan} {kw} {cls.__name__} excl',lambda:cls(fan,**kw).sample(g,s,key,dtype=dt,exclude={e:ex}))
                        if cls in (SubgraphSampler,MineS) and 'batch_dependency' not in kw:
                            run(f'{gn} {seeds_n} {dt} {fan} {kw} {cls.__name__} disj',lambda:cls(fan,disjoint=True,**kw).sample(g,s,key,dtype=dt))
                            run(f'{gn} {seeds_n} {dt} {fan} {kw} {cls.__name__} ind',lambda:cls(fan,induced=True,**kw).sample(g,s,key,dtype=dt))
                            run(f'{gn} {seeds_n} {dt} {fan} {kw} {cls.__name__} disjind',lambda:cls(fan,disjoint=True,induced=True,**kw).sample(g,s,key,dtype=dt))
                for cls in (LaborSampler,MineL):
                    for kw in [{},{'layer_dependency':True},{'prob':'p'},{'importance_sampling':2},{'importance_sampling':-1,'prob':'p'},{'batch_dependency':4},{'batch_dependency':4,'layer_dependency':True},{'prob':'p','batch_dependency':3},{'edge_dir':'out'}]:
                        key=K.batch_key(77,5,K.Ranks(0,1))
                        run(f'{gn} {seeds_n} {dt} {fan} {kw} {cls.__name__}',lambda:cls(fan,**kw).sample(g,s,key,dtype=dt))
                        if 'edge_dir' not in kw: run(f'{gn} {seeds_n} {dt} {fan} {kw} {cls.__name__} excl',lambda:cls(fan,**kw).sample(g,s,key,dtype=dt,exclude={e:ex}))
                for cls in (SubgraphSampler,MineS):
                  for time in ('t','vt'):
                    for kw in [{},{'latest':True},{'time_window':7},{'share_trees':True},{'induced':True},{'edge_dir':'out'}]:
                        st=torch.from_numpy(np.random.default_rng(3).integers(0,50,seeds_n))
                        run(f'{gn} {seeds_n} {dt} {fan} {time} {kw} {cls.__name__}',lambda:cls(fan,time=time,**kw).sample(g,s,9,dtype=dt,seed_times=st))
            for sizes in ([5],[50,3]):
                for m in ('ladies','fastgcn'):
                    for prob in (None,'p'):
                        run(f'{gn} {seeds_n} {dt} layer {sizes} {m} {prob}',lambda:LayerSampler(sizes,m,prob).sample(g,s,9,dtype=dt))
                        run(f'{gn} {seeds_n} {dt} layer {sizes} {m} {prob} excl',lambda:LayerSampler(sizes,m,prob).sample(g,s,9,dtype=dt,exclude={e:ex}))
                for me in (None,4,60):
                    run(f'{gn} {seeds_n} {dt} hgt {sizes} {me}',lambda:HGTSampler(sizes,me).sample(g,s,9,dtype=dt))
            for d,f,r,bs in ((0,3,False,False),(2,4,False,True),(2,3,True,False),(1,-1,False,False)):
                run(f'{gn} {seeds_n} {dt} shadow {d} {f} {r} {bs}',lambda:ShaDowSampler(d,f,r,bs).sample(g,s,9,dtype=dt))
for gn,g in tg.items():
    for num in ({'a':7},{'a':5,'b':9},{'c':3,'a':0},{}):
        seeds={t:torch.from_numpy(np.random.default_rng(k).integers(0,g.num_nodes_of(t),k)) for t,k in num.items()}
        ex={e:ExcludedEdges(torch.arange(0,g.csc_of(e).num_edges,3).to(g.csc_of(e).indices.dtype)) for e in ET[:3]}
        for fan in (FAN[:4]+[[{e:i%3 for i,e in enumerate(ET)},3],[{ET[0]:3}]]):
            for cls in (NeighborSampler,Mine,SubgraphSampler,MineS,LaborSampler,MineL):
                for kw in [{},{'replace':True},{'prob':'p'},{'batch_dependency':4},{'importance_sampling':1}]:
                    if ('replace' in kw) and (cls in(LaborSampler,MineL) or -1 in fan): continue
                    if 'importance_sampling' in kw and cls not in (LaborSampler,MineL): continue
                    key=K.batch_key(77,5,K.Ranks(0,1))
                    run(f'{gn} {num} {fan} {kw} {cls.__name__}',lambda:cls(fan,**kw).sample(g,seeds,key))
                    if cls in (SubgraphSampler,MineS):
                        if 'batch_dependency' not in kw:
                            for more in ({'disjoint':True},{'induced':True},{'disjoint':True,'induced':True}):
                                run(f'{gn} {num} {fan} {kw} {more} {cls.__name__}',lambda:cls(fan,**kw,**more).sample(g,seeds,key))
                    else: run(f'{gn} {num} {fan} {kw} {cls.__name__} ex',lambda:cls(fan,**kw).sample(g,seeds,key,exclude=ex))
            for cls in (SubgraphSampler,MineS):
                for kw in [{},{'latest':True},{'time_window':{ET[0]:9}},{'share_trees':True},{'induced':True}]:
                    st={t:torch.from_numpy(np.random.default_rng(3).integers(0,50,k)) for t,k in num.items()}
                    run(f'{gn} {num} {fan} time {kw} {cls.__name__}',lambda:cls(fan,time='t',**kw).sample(g,seeds,9,seed_times=st))
        for sizes in ([5],[50,3],[{'a':3,'b':2,'c':1}]):
            for me in (None,4,60):
                run(f'{gn} {num} hgt {sizes} {me}',lambda:HGTSampler(sizes,me).sample(g,seeds,9))
        for m in ('ladies','fastgcn'):
            run(f'{gn} {num} layer {m}',lambda:LayerSampler([20,5],m,'p').sample(g,seeds,9))
json.dump(out,open(sys.argv[1],'w'),indent=0)
print(len(out))

import sys, time, torch, numpy as np
import pagraph
from pagraph import Graph, NeighborSampler
from pagraph.sampling import *
try: from pagraph.sampling.excluded import ExcludedEdges
except ImportError: from pagraph.sampling.block_sampler import ExcludedEdges
from pagraph.system.buffers import BufferPools
r=np.random.default_rng(0); n=100_000; m=2_000_000
g=Graph.from_coo((n*r.random(m)**2).astype(int),(n*r.random(m)**2).astype(int),n)
e=g.edge_types[0]
g.set_field('m',torch.from_numpy(r.random(m)>.5),edge_type=e)
class Sub(NeighborSampler): pass
ex={e:ExcludedEdges(torch.from_numpy(r.integers(0,m,1000)).to(g.csc.indices.dtype))}
cases={'neighbor':(NeighborSampler([10,10]),{}),'subclass':(Sub([10,10]),{}),'labor':(LaborSampler([10,10]),{}),'excluded':(NeighborSampler([10,10]),{'exclude':ex}),'mask':(NeighborSampler([10,10],prob='m'),{}),'ladies':(LayerSampler([4000,2000]),{}),'all':(NeighborSampler([-1]),{})}
for num in (1,16,500):
    pools=BufferPools(2); base=None
    res={}
    seeds=[torch.from_numpy(np.random.default_rng(i).integers(0,n,num)) for i in range(40)]
    for rep in range(6):
        for name,(s,kw) in cases.items():
            if name=='ladies' : s=LayerSampler([8*num,4*num])
            t=time.perf_counter(); ed=0
            for i,x in enumerate(seeds):
                b=s.sample(g,x,i,pools=pools,**kw); ed+=sum(len(bl.indices) for bl in b.blocks)
            t=time.perf_counter()-t
            if rep>1: res.setdefault(name,[]).append((t/40*1e6, t/ed*1e9))
    med={k:(np.median([a for a,_ in v]),np.median([b for _,b in v])) for k,v in res.items()}
    b0=med['neighbor']
    print(num, {k:f'{a:.0f}us {b:.1f}ns/e  x{a/b0[0]:.2f} e x{b/b0[1]:.2f}' for k,(a,b) in med.items()})

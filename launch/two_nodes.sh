#!/usr/bin/env bash
# A template for two machines without a scheduler. Run it on both, with the same options after the node's number:
#   machine 0:  HEAD=10.0.0.1 bash launch/two_nodes.sh 0 --target /models/target --draft /models/draft
#   machine 1:  HEAD=10.0.0.1 bash launch/two_nodes.sh 1 --target /models/target --draft /models/draft
# HEAD is machine 0's address; PORT (29500), RANKS_PER_NODE (4) and NODES (2) may be set too.
# Where a machine has several networks, name the one to use: GLOO_SOCKET_IFNAME=eth0 NCCL_SOCKET_IFNAME=eth0
set -euo pipefail
if [ $# -lt 1 ] || [ -z "${HEAD:-}" ]; then
    echo "usage: HEAD=ADDRESS bash launch/two_nodes.sh NODE_NUMBER [options of pearl_pp.run]" >&2
    exit 2
fi
node=$1
shift
. "$(dirname -- "${BASH_SOURCE[0]}")/_env.sh"
ensure_env ""

export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec "$VENV_PY" -m torch.distributed.run \
    --nnodes "${NODES:-2}" --node-rank "$node" --nproc-per-node "${RANKS_PER_NODE:-4}" \
    --master-addr "$HEAD" --master-port "${PORT:-29500}" \
    -m pearl_pp.run "$@"

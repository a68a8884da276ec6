#!/usr/bin/env bash
# Two machines without a scheduler. Run it on both, with the same options after the machine's number:
#   machine 0:  HEAD=10.0.0.1 bash launch/two_nodes.sh 0 --target /models/target --draft /models/draft
#   machine 1:  HEAD=10.0.0.1 bash launch/two_nodes.sh 1 --target /models/target --draft /models/draft
#
#   HEAD             machine 0's address on the network between them: all ranks meet there, at PORT (29500)
#   IFACE            this machine's interface for messages between ranks, over gloo and NCCL; it listens on no other.
#                    Default: the one that leads to HEAD. Set it where a faster network is there as well, on every
#                    machine (the names may differ); ip -brief address lists them
#   RANKS_PER_NODE   4: one per GPU, the same on all machines
#   NODES            2
#
# Machine 0 holds the first stages. PORT of machine 0 must be reachable, and all ports of each machine for the others.
# torchrun itself listens at PORT on every interface of machine 0: use a private network. The start waits for the other
# machines; ranks that do not come are named after --timeout (120 s).
set -euo pipefail
fail() {
    echo "error: $*" >&2
    exit 2
}

# The interface whose address is the source of what goes to HEAD; on machine 0 that is HEAD itself.
interface_to_head() {
    local address source
    address=$(getent ahosts "$HEAD" | awk 'NR == 1 { print $1 }')
    source=$(ip -oneline route get "${address:?}" 2>/dev/null | sed -n 's/.* src \([^ ]*\).*/\1/p')
    ip -oneline address show to "${source:?}" | awk '{ print $2; exit }'
}

if [ $# -lt 1 ] || [ -z "${HEAD:-}" ]; then
    echo "usage: HEAD=ADDRESS [IFACE=INTERFACE] bash launch/two_nodes.sh NODE_NUMBER [options of pearl_pp.run]" >&2
    exit 2
fi
node=$1
shift
nodes=${NODES:-2}
if ! [[ "$nodes" =~ ^[1-9][0-9]{0,4}$ ]]; then
    fail "NODES $nodes: must be the number of machines"
elif ! [[ "$node" =~ ^(0|[1-9][0-9]{0,4})$ ]] || [ "$node" -ge "$nodes" ]; then
    fail "NODE_NUMBER $node: must be this machine's number, 0 to $((nodes - 1))"
fi
interface=${IFACE:-$(interface_to_head 2>/dev/null || true)}
if [ -z "$interface" ] || [ "$interface" = lo ]; then
    fail "HEAD $HEAD: no interface leads there from this machine; give machine 0's address, or name one with IFACE"
elif [[ "$interface" == */* || "$interface" == .* || ! -e "/sys/class/net/$interface" ]]; then
    fail "IFACE $interface: no such interface; there are $(ls /sys/class/net | tr '\n' ' ')"
fi
# NCCL takes a name for a prefix (eth1 is eth10 as well) but for one behind "=".
export GLOO_SOCKET_IFNAME=$interface NCCL_SOCKET_IFNAME="=$interface" OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

. "$(dirname -- "${BASH_SOURCE[0]}")/_env.sh"
ensure_env ""
say "machine $node of $nodes: ${RANKS_PER_NODE:-4} ranks, messages over $interface"
exec "$VENV_PY" -m torch.distributed.run \
    --nnodes "$nodes" --node-rank "$node" --nproc-per-node "${RANKS_PER_NODE:-4}" \
    --master-addr "$HEAD" --master-port "${PORT:-29500}" \
    -m pearl_pp.run "$@"

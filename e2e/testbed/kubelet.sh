# The first process of a node's kubelet, in two steps. Outside, it joins the node's
# control groups; inside, which sees nothing above those, it starts containerd and the
# kubelet, each of which needs the mounts that the other one makes.
mount_groups() {
  local line hierarchy path at
  umount -R /sys/fs/cgroup 2>/dev/null || true
  case $GROUPS_TO_JOIN in
    " "*) ;;
    *) mount -n -t tmpfs none /sys/fs/cgroup ;;
  esac
  while IFS= read -r line; do
    hierarchy=${line%% *} path=${line#* }
    if [ -z "$hierarchy" ]; then
      mount -n -t cgroup2 none /sys/fs/cgroup
      at=/sys/fs/cgroup
    else
      at=/sys/fs/cgroup/${hierarchy#name=}
      mkdir "$at"
      mount -n -t cgroup -o "$hierarchy" none "$at"
    fi
    [ -n "${INSIDE-}" ] || echo $$ >"$at$path/cgroup.procs"
  done <<<"$GROUPS_TO_JOIN"
}
mount_groups
if [ -z "${INSIDE-}" ]; then
  exec env INSIDE=yes unshare --cgroup --mount bash -euc "$SCRIPT" inside
fi
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
  # Version 2 has processes in leaves only.
  mkdir /sys/fs/cgroup/machine
  echo $$ >/sys/fs/cgroup/machine/cgroup.procs
  sed 's/[^ ]*/+&/g' /sys/fs/cgroup/cgroup.controllers >/sys/fs/cgroup/cgroup.subtree_control
fi
# The kubelet sets what counts for all of this machine: here it sets files.
for setting in vm/overcommit_memory kernel/panic kernel/panic_on_oops; do
  cp "/proc/sys/$setting" "/run/${setting#*/}"
  mount -n --bind "/run/${setting#*/}" "/proc/sys/$setting"
done
$CONTAINERD >>"$CONTAINERD_LOG" 2>&1 &
# A kubelet exits if the socket isn't served.
until [ -S "$CONTAINERD_SOCKET" ] && $CTR --address "$CONTAINERD_SOCKET" version >/dev/null 2>&1; do
  kill -0 $! # ends this, too, when containerd has ended
  sleep 0.05
done
$KUBELET >>"$KUBELET_LOG" 2>&1 &
code=0
wait -n || code=$?
echo "containerd or the kubelet has ended with $code"
exit 1

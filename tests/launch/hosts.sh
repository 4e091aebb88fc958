# Hosts on one machine, for scripts that source this. A host is a process with namespaces of its own: of the network,
# joined to the others by a bridge; of processes; of its name, its /etc/hosts and its /dev/shm. The file system is shared. Nothing has
# a name on the machine itself, and all ends with the script, however that ends. Needs $scratch, a folder.
#     make_hosts NAME...   starts them; they reach each other by name
#     on HOST COMMAND...   runs a command there; its status is the command's
#     $scratch/agent       a program that does this from any host, as ssh would: 255 if HOST does not answer
#     cut_off HOST, mend HOST  takes its network away, gives it back
#     kill_host HOST       kills every process on it, and the host
#     processes_on HOST    names what runs there
#     remove_hosts         ends them all
# shellcheck shell=bash disable=SC2154

declare -A host_pid # its first process
namespaces=(--net --mount --uts --pid --mount-proc)
switch_pid=

can_make_hosts() {
  local program
  [[ $(id -u) == 0 ]] || { echo "skipped: not root, who may make network namespaces"; exit 77; }
  for program in ip unshare nsenter setpriv; do
    command -v "$program" >/dev/null || { echo "skipped: no $program"; exit 77; }
  done
  if ! unshare --mount true 2>/dev/null; then # in a chroot, which is no mount point
    if grep -q shared: /proc/self/mountinfo; then
      echo "skipped: what is mounted here would be seen outside"
      exit 77
    fi
    namespaces+=(--propagation unchanged)
  fi
  unshare "${namespaces[@]}" --fork ip link add name br0 type bridge 2>/dev/null ||
    { echo "skipped: no network namespaces or bridges here"; exit 77; }
}

# hold VARIABLE COMMAND...: a command in namespaces of its own, until this script ends; its process is put into VARIABLE.
hold() {
  local -n held=$1
  local outer
  shift
  setpriv --pdeathsig KILL unshare "${namespaces[@]}" --fork --kill-child=KILL "$@" \
    </dev/null >/dev/null 2>&1 &
  outer=$!
  disown
  until held=$(<"/proc/$outer/task/$outer/children") && [[ $held ]]; do sleep 0.02; done
  held=${held% }
}

inside() { # inside PID COMMAND...
  local pid=$1
  shift
  nsenter --target "$pid" --net --uts --mount --root --pid -- "$@"
}

# The first process of a host: runs what agents ask for, each a file with a line of shell.
write_host() {
  cat >"$scratch/host" <<'END'
#!/bin/bash
exec 3<>"$1"
while read -r request <&3; do
  { sh "$request" >"$request.output" 2>&1 </dev/null 3>&-; echo $? >"$request.status"; mv "$request.status" "$request.done"; } &
done
END
  cat >"$scratch/agent" <<END
#!/bin/bash
host=\$1
shift
if [[ \$host != \$(hostname) ]]; then
  error=\$(timeout 1 bash -c ": <>/dev/tcp/\$host/1" 2>&1) || true
  [[ \$error == *refused* ]] || { echo "\$host does not answer" >&2; exit 255; }
fi
request=\$(mktemp "$scratch/request-XXXXXX")
echo "cd \$PWD; \$*" >"\$request"
echo "\$request" >"$scratch/\$host.requests"
until [[ -e \$request.done ]]; do sleep 0.02; done
cat "\$request.output" >&2
exit "\$(<"\$request.done")"
END
  chmod +x "$scratch/host" "$scratch/agent"
}

make_hosts() {
  local name number=0 pid
  write_host
  hold switch_pid sleep infinity
  inside "$switch_pid" ip link add name br0 type bridge
  inside "$switch_pid" ip link set br0 up
  echo "127.0.0.1 localhost" >"$scratch/hosts"
  for name; do
    number=$((number + 1))
    echo "10.213.0.$number $name" >>"$scratch/hosts"
  done
  number=0
  for name; do
    number=$((number + 1))
    mkfifo "$scratch/$name.requests"
    hold pid "$scratch/host" "$scratch/$name.requests"
    host_pid[$name]=$pid
    inside "$pid" mount --bind "$scratch/hosts" /etc/hosts
    inside "$pid" mount -t tmpfs tmpfs /dev/shm # ranks that are killed leave files of MPI there
    inside "$pid" hostname "$name"
    inside "$switch_pid" ip link add name "$name" type veth peer name eth0
    inside "$switch_pid" ip link set dev "$name" master br0 up
    nsenter --target "$switch_pid" --net -- ip link set eth0 netns "$pid"
    inside "$pid" ip link set lo up
    inside "$pid" ip addr add "10.213.0.$number/24" dev eth0
    inside "$pid" ip link set eth0 up
  done
}

on() {
  local host=$1
  shift
  # shellcheck disable=SC2016
  inside "${host_pid[$host]}" sh -c 'cd "$0" && exec "$@"' "$PWD" "$@"
}

cut_off() { inside "$switch_pid" ip link set dev "$1" down; }
# The others reach it again somewhat later.
mend() {
  local other
  inside "$switch_pid" ip link set dev "$1" up
  for other in "${!host_pid[@]}"; do
    until on "$other" "$scratch/agent" "$1" true 2>/dev/null && on "$1" "$scratch/agent" "$other" true 2>/dev/null; do
      sleep 0.1
    done
  done
}
kill_host() { kill -KILL "${host_pid[$1]}"; }

# All but the first process, and what looks.
processes_on() {
  [[ -e /proc/${host_pid[$1]} ]] || return 0
  inside "${host_pid[$1]}" ps -e -o pid=,comm= | grep -v -E '^ *1 |ps$' || true
}

remove_hosts() {
  [[ $switch_pid ]] || return 0
  kill -KILL "$switch_pid" "${host_pid[@]}" 2>/dev/null || true
}

#!/bin/sh
# The network of docs/tutorials/load-balancer.md, as root: `sh network.sh up` makes it, `sh network.sh down`
# removes it. A bridge in the namespace `switch` connects a client, the load balancer and three web servers,
# each in a namespace of its own.

hosts='client:10.0.0.2 lb:10.0.0.5 b1:10.0.0.11 b2:10.0.0.12 b3:10.0.0.13'

up() {
    ip netns add switch
    ip -n switch link add br0 type bridge
    ip -n switch link set br0 up
    for host in $hosts; do
        name=${host%:*}
        ip netns add "$name"
        ip -n "$name" link add eth0 type veth peer name "$name" netns switch
        ip -n switch link set "$name" master br0 up
        ip -n "$name" address add "${host#*:}/24" dev eth0
        ip -n "$name" link set lo up
        ip -n "$name" link set eth0 up
        # A veth leaves checksums to hardware that it does not have, so the senders compute them.
        ip netns exec "$name" ethtool -K eth0 tx off >/dev/null
    done
    ip netns exec switch ethtool -K lb tx off txvlan off tx-vlan-stag-hw-insert off >/dev/null
    for name in b1 b2 b3; do
        # A web server has the service's address, and does not answer ARP for it.
        ip -n "$name" address add 10.0.0.80/32 dev lo
        ip netns exec "$name" sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2
        mkdir -p "www/$name"
        echo "hello from $name" >"www/$name/index.html"
        ip netns exec "$name" python3 -m http.server 80 --directory "www/$name" >/dev/null 2>&1 &
    done
}

down() {
    for name in client lb b1 b2 b3; do
        ip netns pids "$name" 2>/dev/null | xargs -r kill
        ip netns delete "$name"
    done
    ip netns delete switch
    rm -r www
}

case $1 in
    up | down) "$1" ;;
    *) echo "usage: sh network.sh up | down" >&2; exit 2 ;;
esac

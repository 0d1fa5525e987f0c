package cluster

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
)

// network is where the real node and its pods live: a bridge interface and a
// /24 of its own, of which the first address is the machine's, and the node's.
type network struct {
	Bridge string       `json:"bridge"`
	Subnet netip.Prefix `json:"subnet"`
}

// node is the real node's address.
func (n network) node() netip.Addr { return n.Subnet.Addr().Next() }

// candidates are the subnets to choose from, 10.160.0.0 to 10.191.255.0: a
// range that no common tool takes by default (Docker has 172.17 to 172.31 and
// 192.168, flannel 10.244, Calico 192.168, kubeadm's services 10.96, k3s 10.42
// and 10.43).
const (
	firstSubnet = 10<<24 | 160<<16
	subnets     = 32 * 256
)

// chooseNetwork derives a network from the cluster's hash, so that it is the
// same every time, and moves on from subnets that overlap what the machine
// uses already.
func chooseNetwork(hash string, used []netip.Prefix) (network, error) {
	seed, err := hex.DecodeString(hash)
	if err != nil || len(seed) < 4 {
		return network{}, fmt.Errorf("cluster hash %q: want 8 hexadecimal digits", hash)
	}
	start := binary.BigEndian.Uint32(seed)
	for i := range uint32(subnets) {
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], firstSubnet+(start+i)%subnets<<8)
		subnet := netip.PrefixFrom(netip.AddrFrom4(a), 24)
		if !overlaps(subnet, used) {
			return network{Bridge: bridgeName(hash), Subnet: subnet}, nil
		}
	}
	return network{}, errors.New("no free subnet between 10.160.0.0 and 10.191.255.0 for the real node's pods; REAL_NODE=0 does without")
}

// bridgeName is within the 15 characters that a Linux interface may have.
func bridgeName(hash string) string { return "tr-" + hash }

func overlaps(p netip.Prefix, used []netip.Prefix) bool {
	for _, u := range used {
		if u.Bits() > 0 && u.Overlaps(p) {
			return true
		}
	}
	return false
}

// rememberedNetwork returns the network chosen at the first Up, or chooses.
func (p paths) rememberedNetwork(used func() ([]netip.Prefix, error)) (network, error) {
	var n network
	err := readJSON(p.in("network.json"), &n)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return n, err
	}
	taken, err := used()
	if err != nil {
		return n, err
	}
	if n, err = chooseNetwork(p.hash(), taken); err != nil {
		return n, err
	}
	return n, writeJSON(p.in("network.json"), n)
}

package cluster

import (
	"net/netip"
	"slices"
	"testing"
)

func TestNetworkIsDerivedAndMovesOnFromUsedSubnets(t *testing.T) {
	t.Parallel()
	n, err := chooseNetwork("00000102", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := n.Subnet.String(); got != "10.161.2.0/24" {
		t.Errorf("subnet %s", got)
	}
	if got := n.node().String(); got != "10.161.2.1" {
		t.Errorf("node %s", got)
	}
	if n.Bridge != "tr-00000102" {
		t.Errorf("bridge %s", n.Bridge)
	}
	used := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("10.161.2.7/32"), netip.MustParsePrefix("10.161.3.0/24")}
	if n, err = chooseNetwork("00000102", used); err != nil || n.Subnet.String() != "10.161.4.0/24" {
		t.Errorf("beside %v: %v, %v", used, n.Subnet, err)
	}
	if n, err = chooseNetwork("00001fff", []netip.Prefix{netip.MustParsePrefix("10.191.255.0/24")}); err != nil || n.Subnet.String() != "10.160.0.0/24" {
		t.Errorf("behind the last: %v, %v", n.Subnet, err)
	}
	if _, err := chooseNetwork("00000102", []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}); err == nil {
		t.Error("found a subnet where there is none")
	}
}

func TestNetworkIsRemembered(t *testing.T) {
	t.Parallel()
	p := paths{dir: t.TempDir()}
	first, err := p.rememberedNetwork(func() ([]netip.Prefix, error) { return nil, nil })
	if err != nil {
		t.Fatal(err)
	}
	again, err := p.rememberedNetwork(func() ([]netip.Prefix, error) { return []netip.Prefix{first.Subnet}, nil })
	if err != nil || again != first {
		t.Errorf("%v became %v, %v", first, again, err)
	}
}

func TestRoutesOfAllKindsCount(t *testing.T) {
	t.Parallel()
	got, err := parseRoutes([]byte(`[{"dst":"default","gateway":"1.2.3.4"},{"dst":"10.0.0.0/8","dev":"vpn"},{"type":"local","dst":"10.160.1.1","dev":"eth0"}]`))
	if err != nil {
		t.Fatal(err)
	}
	want := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.160.1.1/32")}
	if !slices.Equal(got, want) {
		t.Errorf("routes %v, want %v", got, want)
	}
}

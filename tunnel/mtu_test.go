package tunnel

import (
	"net/netip"
	"testing"
)

func TestMTUOfTheUnderlay(t *testing.T) {
	four, six := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fd00::1")
	for name, c := range map[string]struct {
		paths     []UnderlayPath
		auto      int
		largest   int
		narrowest netip.Addr
	}{
		"Ethernet":                        {[]UnderlayPath{{To: four, MTU: 1500}}, 1420, 1440, four},
		"Ethernet, IPv6":                  {[]UnderlayPath{{To: six, MTU: 1500}}, 1420, 1420, six},
		"Google's":                        {[]UnderlayPath{{To: four, MTU: 1460, Routed: true}}, 1380, 1400, four},
		"the narrowest of several":        {[]UnderlayPath{{To: four, MTU: 1500}, {To: six, MTU: 1450}}, 1370, 1370, six},
		"the same path, more overhead":    {[]UnderlayPath{{To: four, MTU: 1500}, {To: six, MTU: 1500}}, 1420, 1420, six},
		"jumbo frames on the own link":    {[]UnderlayPath{{To: four, MTU: 9001}}, 8921, 8941, four},
		"jumbo frames up to a router":     {[]UnderlayPath{{To: four, MTU: 9001, Routed: true}}, 1420, 8941, four},
		"jumbo frames by a route":         {[]UnderlayPath{{To: four, MTU: 8500, Routed: true, Stated: true}}, 8420, 8440, four},
		"too narrow for IPv6 in a tunnel": {[]UnderlayPath{{To: four, MTU: 1300}}, 1280, 1240, four},
		"the loopback":                    {[]UnderlayPath{{To: four, MTU: 65536}}, MaxMTU, MaxMTU, netip.Addr{}},
	} {
		t.Run(name, func(t *testing.T) {
			auto, known := MTUFor(c.paths)
			largest, narrowest, knownToo := LargestMTU(c.paths)
			if auto != c.auto || largest != c.largest || narrowest.To != c.narrowest || !known || !knownToo {
				t.Errorf("MTU %d (%v), want %d; largest %d (%v) by %v, want %d by %v",
					auto, known, c.auto, largest, knownToo, narrowest.To, c.largest, c.narrowest)
			}
		})
	}
	if _, known := MTUFor(nil); known {
		t.Error("an MTU for no path")
	}
	if _, _, known := LargestMTU(nil); known {
		t.Error("a largest MTU for no path")
	}
}

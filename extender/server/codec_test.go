package server

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	extender "k8s.io/kube-scheduler/extender/v1"

	"github.com/tranche-dev/tranche/extender/planner"
)

func TestNamesAreReadAsTheLibraryReadsThem(t *testing.T) {
	for _, text := range []string{
		`[]`, `[ ]`, `["a"]`, ` [ "a" , "b" ] `, `["a","","b"]`, `["a\"b","\u0041"]`, `["ä","日本"]`, `["a]b","c,d"]`, `["a[0]"]`,
		`null`, `[null]`, `[1]`, `["a",{}]`, `{}`, `"a"`, `[["a"]]`, "[\n\t\"a\",\r\n\"b\"]",
	} {
		var want struct{ N *[]string }
		var got struct{ N *nameList }
		body := []byte(`{"N":` + text + `}`)
		wantErr, gotErr := json.Unmarshal(body, &want), json.Unmarshal(body, &got)
		if (wantErr == nil) != (gotErr == nil) {
			t.Errorf("%s: error %v, want %v", text, gotErr, wantErr)
			continue
		}
		if wantErr != nil {
			continue
		}
		if (want.N == nil) != (got.N == nil) {
			t.Errorf("%s: %v, want %v", text, got.N, want.N)
			continue
		}
		if want.N != nil {
			if diff := cmp.Diff(*want.N, []string(*got.N)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", text, diff)
			}
		}
	}
}

func FuzzNames(f *testing.F) {
	f.Add([]byte(`["a", "b"]`))
	f.Add([]byte("[\"\x81\"]")) // not UTF-8
	f.Fuzz(func(t *testing.T, text []byte) {
		if !json.Valid(text) {
			return
		}
		names, ok := cutNames(text)
		if !ok {
			return
		}
		var want []string
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatalf("%q: read %q, but %v", text, names, err)
		}
		if diff := cmp.Diff(want, names); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	})
}

func TestAnswersAreWrittenAsTheLibraryWritesThem(t *testing.T) {
	nodes := []string{"a", `b"\<`, "ä", "tab\t", ""}
	verdict := planner.Verdict{Reasons: []planner.Reason{"", "full", "", "sick", "no \"room\""}, Passed: 2}
	var got extender.ExtenderFilterResult
	if err := json.Unmarshal(encodeFilter(nodes, verdict), &got); err != nil {
		t.Fatal(err)
	}
	want := extender.ExtenderFilterResult{
		NodeNames:                  &[]string{"a", "ä"},
		FailedAndUnresolvableNodes: extender.FailedNodesMap{`b"\<`: "full", "tab\t": "sick", "": "no \"room\""},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("filter (-want +got):\n%s", diff)
	}
	if err := json.Unmarshal(encodeFilter(nodes, planner.Verdict{Passed: 5}), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(nodes, *got.NodeNames); diff != "" {
		t.Errorf("all pass (-want +got):\n%s", diff)
	}
	var failed extender.ExtenderFilterResult
	if err := json.Unmarshal(encodeFilterError("a \"b\"\nc"), &failed); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(extender.ExtenderFilterResult{Error: "a \"b\"\nc"}, failed); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
	var priorities extender.HostPriorityList
	if err := json.Unmarshal(encodePriorities(nodes, []int64{1, 2, 3, -4, 10}), &priorities); err != nil {
		t.Fatal(err)
	}
	for i, p := range priorities {
		if p.Host != nodes[i] || p.Score != []int64{1, 2, 3, -4, 10}[i] {
			t.Errorf("priority %d: %+v", i, p)
		}
	}
}

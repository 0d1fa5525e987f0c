package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"github.com/tranche-dev/tranche/extender/planner"
)

// filterArgs is extender.ExtenderArgs with a quicker list of names. Like the
// original it has no JSON tags.
type filterArgs struct {
	Pod       *corev1.Pod
	Nodes     *corev1.NodeList
	NodeNames *nameList
}

var (
	errNoPod = errors.New("the request has no Pod")
	errNoUID = errors.New("the request's Pod has no UID")
)

func decodeArgs(body []byte) (filterArgs, error) {
	var args filterArgs
	if err := decode(body, &args); err != nil {
		return filterArgs{}, err
	}
	if args.Pod == nil {
		return filterArgs{}, errNoPod
	}
	if args.Pod.UID == "" {
		return filterArgs{}, errNoUID
	}
	return args, nil
}

// names are the nodes asked about, in either form; nil if there are none.
func (a *filterArgs) names() []string {
	switch {
	case a.NodeNames != nil:
		return *a.NodeNames
	case a.Nodes != nil:
		names := make([]string, len(a.Nodes.Items))
		for i := range a.Nodes.Items {
			names[i] = a.Nodes.Items[i].Name
		}
		return names
	default:
		return nil
	}
}

// nameList is a list of node names. Thousands of short strings without escapes
// are cut out of one string, which is most of the work of decoding a call.
type nameList []string

// UnmarshalJSON implements json.Unmarshaler. text is valid JSON.
func (l *nameList) UnmarshalJSON(text []byte) error {
	if names, ok := cutNames(text); ok {
		*l = names
		return nil
	}
	var names []string
	if err := json.Unmarshal(text, &names); err != nil {
		return fmt.Errorf("NodeNames: %w", err)
	}
	*l = names
	return nil
}

// cutNames handles arrays of strings in which no character is escaped. It
// leaves all beyond ASCII, which no node name has, to the careful decoder: that
// one replaces what is not UTF-8.
func cutNames(text []byte) ([]string, bool) {
	if len(text) < 2 || text[0] != '[' {
		return nil, false
	}
	all, quotes := string(text), 0
	for i := range len(all) {
		switch c := all[i]; {
		case c == '"':
			quotes++
		case c == '\\' || c >= utf8.RuneSelf:
			return nil, false
		}
	}
	names := make([]string, 0, quotes/2)
	for i := 1; i < len(all); i++ {
		switch all[i] {
		case '"':
			end := i + 1
			for all[end] != '"' {
				end++
			}
			names = append(names, all[i+1:end])
			i = end
		case ',', ' ', '\n', '\t', '\r', ']':
		default:
			return nil, false // null or a number: for the careful decoder
		}
	}
	return names, true
}

func decode(body []byte, into any) error {
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("the request is not the JSON that kube-scheduler sends: %w", err)
	}
	return nil
}

// encode marshals the API's own types, which cannot fail.
func encode(v any) []byte {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err) // recovered, counted and answered
	}
	return body
}

// encodeFilter writes an extender.ExtenderFilterResult for node names. A call
// may be about thousands of nodes; encoding/json would sort them.
func encodeFilter(nodes []string, verdict planner.Verdict) []byte {
	b := takeBuffer(sizeOf(nodes, 8) + 128)
	b = append(b, `{"Nodes":null,"NodeNames":[`...)
	first := true
	for i, name := range nodes {
		if verdict.Reason(i) != "" {
			continue
		}
		b = appendSeparated(b, &first, name)
	}
	b = append(b, `],"FailedNodes":null,"FailedAndUnresolvableNodes":{`...)
	first = true
	for i, reason := range verdict.Reasons {
		if reason == "" {
			continue
		}
		b = appendSeparated(b, &first, nodes[i])
		b = append(b, ':')
		b = appendString(b, string(reason))
	}
	return append(b, `},"Error":""}`...)
}

// sizeOf is how long the names are together, with so many bytes more for each.
func sizeOf(nodes []string, more int) int {
	n := 0
	for _, name := range nodes {
		n += len(name) + more
	}
	return n
}

func encodeFilterError(text string) []byte {
	b := []byte(`{"Nodes":null,"NodeNames":null,"FailedNodes":null,"FailedAndUnresolvableNodes":null,"Error":`)
	return append(appendString(b, text), '}')
}

// encodePriorities writes an extender.HostPriorityList.
func encodePriorities(nodes []string, priorities []int64) []byte {
	b := takeBuffer(sizeOf(nodes, 24))
	b = append(b, '[')
	for i, name := range nodes {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"Host":`...)
		b = appendString(b, name)
		b = append(b, `,"Score":`...)
		b = strconv.AppendInt(b, priorities[i], 10)
		b = append(b, '}')
	}
	return append(b, ']')
}

func appendSeparated(b []byte, first *bool, s string) []byte {
	if !*first {
		b = append(b, ',')
	}
	*first = false
	return appendString(b, s)
}

// appendString appends a JSON string. Names are plain; anything else is left to
// the library.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			return append(b, encode(s)...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

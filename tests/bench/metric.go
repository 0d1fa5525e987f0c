package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/tranche-dev/tranche/tests/cluster"
)

// gauge is the sum of a gauge of the extender over all its labels.
func (k *kit) gauge(ctx context.Context, name string) (int, error) {
	sum, err := k.metric(ctx, cluster.Extender, name)
	return int(sum), err
}

// metric is the sum of a program's metric over all series that have the labels,
// such as `queue="gated"`.
func (k *kit) metric(ctx context.Context, program, name string, labels ...string) (float64, error) {
	config, err := k.kube.RESTConfig()
	if err != nil {
		return 0, err
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return 0, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, k.kube.OpsURL(program)+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("metrics of %s: %s", program, response.Status)
	}
	sum := 0.0
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		at := strings.LastIndexByte(lines.Text(), ' ') // values of labels may have spaces
		if at < 0 {
			continue
		}
		series, value := lines.Text()[:at], lines.Text()[at+1:]
		if series != name && !strings.HasPrefix(series, name+"{") {
			continue
		}
		if slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(series, l) }) {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("metric %s: %w", name, err)
		}
		sum += v
	}
	return sum, lines.Err()
}

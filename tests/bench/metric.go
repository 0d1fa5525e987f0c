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

// gauge is the sum of a metric of the extender over all series with these labels.
func (k *kit) gauge(ctx context.Context, name string, labels ...string) (int, error) {
	sum, err := k.metric(ctx, cluster.Extender, name, labels...)
	return int(sum), err
}

// metric is the sum of a metric of any program over all its series that have
// these labels, each as name="value".
func (k *kit) metric(ctx context.Context, program, name string, labels ...string) (float64, error) {
	body, err := k.get(ctx, program, "/metrics")
	if err != nil {
		return 0, err
	}
	sum := 0.0
	lines := bufio.NewScanner(strings.NewReader(body))
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

// get asks a program for what it serves to administrators.
func (k *kit) get(ctx context.Context, program, path string) (string, error) {
	config, err := k.kube.RESTConfig()
	if err != nil {
		return "", err
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return "", err
	}
	url := k.kube.OpsURL(program) + path
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	var body strings.Builder
	if _, err := bufio.NewReader(response.Body).WriteTo(&body); err != nil {
		return "", err
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s answers %s: %.200s", url, response.Status, body.String())
	}
	return body.String(), nil
}

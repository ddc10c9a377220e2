// Package tracing sends the manager's spans to an OpenTelemetry collector by OTLP over HTTP. It is off unless the
// standard environment variables ask for it: OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT names a
// collector, or OTEL_TRACES_EXPORTER is "otlp", which means the collector at http://localhost:4318.
//
// The SDK reads all other variables, such as OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER,
// OTEL_BSP_..., OTEL_SPAN_..._LIMIT and OTEL_EXPORTER_OTLP_HEADERS. Start checks their values first: the SDK takes most wrong ones for the
// default, without a word. A collector that is away or hangs costs spans and nothing else: the SDK
// keeps a bounded queue and drops what does not fit.
package tracing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// FlushTimeout bounds how long Shutdown waits for the collector.
const FlushTimeout = 3 * time.Second

// Provider makes the manager's spans. A nil Provider makes none.
type Provider struct {
	sdk *sdktrace.TracerProvider
	log *slog.Logger

	mu     sync.Mutex
	warned time.Time
}

// Start returns a provider, or nil if the environment asks for none. The error is for a variable with a bad value.
func Start(ctx context.Context, env func(string) string, version string, log *slog.Logger) (*Provider, error) {
	variables := environment(env)
	want, err := variables.wanted()
	if !want || err != nil {
		return nil, err
	}
	if err := variables.check(); err != nil {
		return nil, err
	}
	p := &Provider{log: log}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(p.failed))
	otel.SetLogger(logr.FromSlogHandler(log.Handler()))
	var options []otlptracehttp.Option
	if variables.insecure() {
		options = append(options, otlptracehttp.WithInsecure())
	}
	exporter, err := otlptracehttp.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_ENDPOINT: %w", err)
	}
	// What comes later wins.
	res, err := resource.New(ctx, resource.WithTelemetrySDK(),
		resource.WithAttributes(attribute.String("service.name", "oncegate-manager"), attribute.String("service.version", version)), resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	p.sdk = sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res))
	return p, nil
}

// failed logs what the SDK could not do, once a minute.
func (p *Provider) failed(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); now.Sub(p.warned) >= time.Minute {
		p.warned = now
		p.log.Warn("spans do not reach the collector", "error", err.Error())
	}
}

// Tracer returns what makes spans, nil if none are wanted.
func (p *Provider) Tracer() trace.Tracer {
	if p == nil {
		return nil
	}
	return p.sdk.Tracer("github.com/oncegate/oncegate/manager")
}

// Shutdown sends what is queued. It takes at most FlushTimeout.
func (p *Provider) Shutdown() {
	if p == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), FlushTimeout)
	defer cancel()
	if err := p.sdk.Shutdown(ctx); err != nil {
		p.failed(err)
	}
}

// LZ4: the relay of Factum compresses with it, and kafkajs has no codec of its own.
import kafkajs from "kafkajs";
import { compressFrame, decompressFrame } from "lz4-napi";

/** What kafkajs asks of a codec. */
interface Codec {
  compress(encoder: { readonly buffer: Buffer }): Promise<Buffer>;
  decompress(compressed: Buffer): Promise<Buffer>;
}

// kafkajs is a CommonJS module: its values come by the default import.
const { CompressionCodecs, CompressionTypes } = kafkajs;

/** Teaches kafkajs LZ4, for the whole process. Without it the first compressed batch ends the consumer. */
export function registerLz4(): void {
  CompressionCodecs[CompressionTypes.LZ4] = (): Codec => ({
    compress: ({ buffer }) => compressFrame(buffer),
    decompress: (compressed) => decompressFrame(compressed),
  });
}
